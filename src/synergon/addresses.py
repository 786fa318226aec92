"""Addresses of servers, and the prefixes that cover them.

An address is a URL, a host with or without a port, or any other word. Two addresses that differ only in what a server
does not see as its place (query, fragment, the case of the host, a slash at the end) are the same one.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from synergon.errors import OptionError

LONGEST: Final = 500
ALLOWED: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:/[]@!$&'()*+,;=%?#")
DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


def normal_address(value: Any, what: str = "a server's address") -> str:
    """The one way to write it; OptionError if it is none."""
    if not isinstance(value, str) or not value or len(value) > LONGEST or not ALLOWED.issuperset(value):
        raise OptionError(f"{what} must be a URL, a host or another word without spaces, got {value!r}")
    scheme, separator, rest = value.partition("://")
    if not separator:
        scheme, rest = "", value
    rest = rest.partition("#")[0].partition("?")[0].rstrip("/")
    host, slash, path = rest.partition("/")
    host = host.lower().removesuffix(DEFAULT_PORTS.get(scheme.lower(), "\0"))
    if not host or (separator and not scheme):
        raise OptionError(f"{what} must name a host, got {value!r}")
    _check_port(host, value, what)
    return f"{scheme.lower()}{separator}{host}{slash}{path}"


def _check_port(host: str, value: str, what: str) -> None:
    try:
        _ = urlsplit(f"//{host}").port
    except ValueError as error:
        raise OptionError(f"{what} has a port that is none, got {value!r}") from error


def covers(prefix: str, address: str) -> bool:
    """Whether the address is the prefix or below it; both are normal.

    A prefix ends where a host, its port or a part of the path ends. One without a scheme covers every scheme, one
    without a port every port.
    """
    if "://" not in prefix:
        address = address.partition("://")[2] or address
    return address == prefix or (address.startswith(prefix) and _is_boundary(prefix, address[len(prefix)]))


def _is_boundary(prefix: str, following: str) -> bool:
    has_path = "/" in (prefix.partition("://")[2] or prefix)
    return following == "/" or (following == ":" and not has_path)
