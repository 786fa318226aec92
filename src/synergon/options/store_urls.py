"""URLs of stores, as they are checked first and as people may see them: no message, log or page holds a password."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote_plus

from synergon.errors import OptionError

SECRETS: Final = frozenset({"password", "sslpassword"})
WITHOUT_PASSWORDS: Final = frozenset({"sqlite", "memory"})
"""Schemes of which everything behind the slashes is a name."""


def check_url(value: Any) -> str:
    """A URL of some store; OptionError if it is none."""
    if isinstance(value, str) and "://" in value:
        return value
    text = repr(value)
    got = "something else" if "@" in text or "=" in text else text  # it may hold a password
    raise OptionError(f"a store's URL looks like sqlite:///app.db, postgresql://host/db or memory://, got {got}")


def shown(url: str) -> str:
    """The URL for people to see: without its passwords, also where they were written in a wrong way."""
    scheme, separator, rest = url.partition("://")
    if scheme in WITHOUT_PASSWORDS:
        return url
    rest, mark, query = rest.partition("?")
    user, at, authority = rest.rpartition("@")  # the last one: a password may hold a / or an @ that nobody has escaped
    kept = "&".join(parameter for parameter in query.split("&") if not _is_secret(parameter))
    return f"{scheme}{separator}{user.partition(':')[0]}{at}{authority}{mark if kept else ''}{kept}"


def _is_secret(parameter: str) -> bool:
    return unquote_plus(parameter.partition("=")[0]).lower() in SECRETS
