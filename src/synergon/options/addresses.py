"""Addresses of servers, and the prefixes that cover them.

An address is a URL, a host with or without a port, or any other text. Addresses are equal if they differ only in parts
that do not identify a server: query, fragment, case of the host, trailing slash, default port of the scheme.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from synergon.errors import OptionError

LONGEST: Final = 500
ALLOWED: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:/[]@!$&'()*+,;=%?#")
DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


def normal_address(value: Any, what: str = "a server's address") -> str:
    """Normalise an address. Raises OptionError if it is invalid."""
    scheme, separator, authority, path = _parts(value, what)
    user, at, host = authority.rpartition("@")
    host = host.lower().removesuffix(DEFAULT_PORTS.get(scheme, "\0"))
    if not host:
        raise OptionError(f"{what} must name a host, got {value!r}")
    return f"{scheme}{separator}{user}{at}{host}{path}"


def normal_prefix(value: Any, what: str = "a prefix") -> str:
    """Normalise a prefix of addresses. Raises OptionError if it could never cover an address.

    Unlike an address, a prefix keeps the default port of its scheme: with a port it covers no other port.
    """
    scheme, separator, authority, path = _parts(value, what)
    if "*" in value:
        raise OptionError(
            f"{what} covers everything below it and takes no wildcards, got {value!r}; end it before the *"
        )
    if separator and "@" in authority:
        raise OptionError(f"{what} covers a host for all its users, got {value!r}; leave out the part before the @")
    return f"{scheme}{separator}{authority.lower()}{path}"


def _parts(value: Any, what: str) -> tuple[str, str, str, str]:
    """The scheme, the separator, the host part, and the path with its first slash. Raises OptionError if the value is
    invalid."""
    if not isinstance(value, str) or not value or len(value) > LONGEST or not ALLOWED.issuperset(value):
        raise OptionError(f"{what} must be a URL, a host or another word without spaces, got {value!r}")
    scheme, separator, rest = value.partition("://")
    if not separator:
        scheme, rest = "", value
    rest = rest.partition("#")[0].partition("?")[0].rstrip("/")
    authority, slash, path = rest.partition("/")
    if not authority or authority[0] == ":" or (separator and not scheme):
        raise OptionError(f"{what} must name a host, got {value!r}")
    if authority.endswith(":"):
        raise OptionError(
            f"{what} has a colon without a port, got {value!r}; two slashes follow a scheme, as in http://"
        )
    _check_port(authority, value, what)
    return scheme.lower(), separator, authority, slash + path


def _check_port(authority: str, value: str, what: str) -> None:
    try:
        _ = urlsplit(f"//{authority}").port
    except ValueError as error:
        raise OptionError(f"{what} has a port that is none, got {value!r}") from error


def covers(prefix: str, address: str) -> bool:
    """Whether the address equals the prefix or is below it. Both are normalised.

    A prefix ends where a host, its port or a part of the path ends. A prefix without a scheme covers every scheme, one
    without a port every port. It covers all users of a host.
    """
    return prefix == address or any(_is_below(prefix, form) for form in _forms(address, "://" in prefix))


@lru_cache(maxsize=10_000)  # cached, because every claim calls it for every server
def _forms(address: str, has_scheme: bool) -> tuple[str, ...]:
    """The forms of an address with which a prefix is compared: without the user, as it is and with the default port."""
    scheme, separator, rest = address.rpartition("://")
    authority, slash, path = rest.partition("/")
    host = authority.rpartition("@")[2]
    start = f"{scheme}{separator}" if has_scheme else ""
    has_port = ":" in host.rpartition("]")[2]
    ports = ("",) if has_port or scheme not in DEFAULT_PORTS else ("", DEFAULT_PORTS[scheme])
    return tuple(f"{start}{host}{port}{slash}{path}" for port in ports)


@lru_cache(maxsize=10_000)
def prefixes_of(address: str) -> frozenset[str]:
    """All prefixes that cover the address."""
    forms = {address, *_forms(address, True), *_forms(address, False)}
    starts = {form[:end] for form in forms for end in range(1, len(form) + 1)}
    return frozenset(start for start in starts if covers(start, address))


def _is_below(prefix: str, address: str) -> bool:
    return address == prefix or (address.startswith(prefix) and _is_boundary(prefix, address[len(prefix)]))


def _is_boundary(prefix: str, following: str) -> bool:
    has_path = "/" in (prefix.partition("://")[2] or prefix)
    return following == "/" or (following == ":" and not has_path)
