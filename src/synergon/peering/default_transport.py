"""Which way to its peers an engine has: what its settings say, or else what its store needs."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from synergon.options.settings import AUTO, Settings
from synergon.peering.http_server import HttpTransport, reachable_host
from synergon.peering.transport import Transport

EVERYWHERE: Final = "0.0.0.0"  # noqa: S104  many hosts share one PostgreSQL; messages are signed
HERE: Final = "127.0.0.1"


def default_transport(settings: Settings) -> Transport | None:
    """HTTP where several processes share the store; None where nobody else could."""
    if settings.url.startswith("memory://") and settings.listen == AUTO and settings.advertise is None:
        return None
    database = urlsplit(settings.url).hostname
    return HttpTransport(_listen(settings), settings.advertise, lambda: reachable_host(database))


def _listen(settings: Settings) -> tuple[str, int] | None:
    if settings.listen is None:
        return None
    if settings.listen == AUTO:
        return (HERE if settings.url.startswith(("sqlite://", "memory://")) else EVERYWHERE), 0
    host, _, port = settings.listen.rpartition(":")
    return host.strip("[]"), int(port)
