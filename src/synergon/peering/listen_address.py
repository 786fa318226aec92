"""The interface that an engine listens on if its settings name none: the one that faces the database.

Hosts that share the database can reach this interface; wider networks usually cannot.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, urlsplit

LOOPBACK: Final = "127.0.0.1"
DISCARD_PORT: Final = 9
"""Any port would do: nothing is sent to it."""


def database_hosts(url: str) -> tuple[str, ...]:
    """The hosts that a store's URL names. Empty for a file, for memory, and for a socket in the file system."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        return ()
    named = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host") or os.environ.get("PGHOST", "")
    hosts = (urlsplit(f"//{host}").hostname for host in named.split(",") if not host.startswith("/"))
    return tuple(host for host in hosts if host)


def facing_address(hosts: Iterable[str]) -> str:
    """This host's address on the route to the first of `hosts` that is another host. If there is none, the loopback
    address."""
    for host in hosts:
        address = route_address(host)
        if address is not None and not _is_loopback(address):
            return address
    return LOOPBACK


def route_address(host: str) -> str | None:
    """This host's address on the route to `host`. None if `host` is unknown or there is no route."""
    try:
        found = socket.getaddrinfo(host, DISCARD_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
