"""The address that an engine listens on. If its settings name no interface, it is the interface that faces the
database.

Hosts that share the database can reach this interface; wider networks usually cannot.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from synergon.errors import OptionError

LOOPBACK: Final = "127.0.0.1"
DISCARD_PORT: Final = 9
"""An arbitrary port: nothing is sent to it."""


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


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A socket that is bound to this address, for an event loop. Raises OptionError if the address cannot be bound;
    `setting` is the name of the setting in the error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets whose protocol is named.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OptionError(
            f"{setting}={host}:{port} cannot be bound: {error.strerror or error}; choose another address, "
            f'port 0 for any free port, or {setting}="off"'
        ) from error
    bound.setblocking(False)
    return bound
