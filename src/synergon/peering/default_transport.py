"""Chooses the transport of an engine by its settings, if the user gave none."""

from __future__ import annotations

from synergon.options.settings import AUTO, Settings
from synergon.peering.http_transport import HttpTransport
from synergon.peering.listen_address import database_hosts
from synergon.peering.transport import Transport


def default_transport(settings: Settings) -> Transport | None:
    """The HTTP transport, if several processes can share the store. None for a memory store, which no other process can
    open, unless the settings say where to listen."""
    if settings.url.startswith("memory://") and settings.listen == AUTO and settings.advertise is None:
        return None
    return HttpTransport(_listen(settings), settings.advertise, database_hosts(settings.url))


def _listen(settings: Settings) -> tuple[str | None, int] | None:
    if settings.listen is None:
        return None
    if settings.listen == AUTO:
        return None, 0
    host, _, port = settings.listen.rpartition(":")
    return host.strip("[]"), int(port)
