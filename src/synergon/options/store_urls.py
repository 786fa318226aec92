"""URLs of stores: checks them, and removes passwords for messages, logs and pages."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote_plus

from synergon.errors import OptionError

SECRETS: Final = frozenset({"password", "sslpassword"})
WITHOUT_PASSWORDS: Final = frozenset({"sqlite", "memory"})
"""The schemes whose URLs contain only a name, so no password."""


def check_url(value: Any) -> str:
    """Return the URL of a store if it is valid. Raises OptionError otherwise."""
    if isinstance(value, str) and "://" in value:
        return value
    text = repr(value)
    got = "something else" if "@" in text or "=" in text else text  # it may hold a password
    raise OptionError(f"a store's URL looks like sqlite:///app.db, postgresql://host/db or memory://, got {got}")


def shown(url: str) -> str:
    """The URL without passwords, even if they were not escaped correctly."""
    scheme, separator, rest = url.partition("://")
    if scheme in WITHOUT_PASSWORDS:
        return url
    rest, mark, query = rest.partition("?")
    user, at, authority = rest.rpartition("@")  # the last one: a password may contain a / or @ that was not escaped
    public = "&".join(parameter for parameter in query.split("&") if not _is_secret(parameter))
    return f"{scheme}{separator}{user.partition(':')[0]}{at}{authority}{mark if public else ''}{public}"


def _is_secret(parameter: str) -> bool:
    return unquote_plus(parameter.partition("=")[0]).lower() in SECRETS
