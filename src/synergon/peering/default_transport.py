"""Choice of the transport of an engine that was given none: from its settings, or else from its store."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from synergon.options.settings import AUTO, Settings
from synergon.peering.http_transport import HttpTransport
from synergon.peering.transport import Transport

ALL_INTERFACES: Final = "0.0.0.0"  # noqa: S104  many hosts share one PostgreSQL; messages are signed
LOOPBACK: Final = "127.0.0.1"


def default_transport(settings: Settings) -> Transport | None:
    """HTTP where several processes can share the store; None for a memory store, which no other process can open."""
    if settings.url.startswith("memory://") and settings.listen == AUTO and settings.advertise is None:
        return None
    return HttpTransport(_listen(settings), settings.advertise, urlsplit(settings.url).hostname)


def _listen(settings: Settings) -> tuple[str, int] | None:
    if settings.listen is None:
        return None
    if settings.listen == AUTO:
        return (LOOPBACK if settings.url.startswith(("sqlite://", "memory://")) else ALL_INTERFACES), 0
    host, _, port = settings.listen.rpartition(":")
    return host.strip("[]"), int(port)
