"""Back-offs of servers in the memory store."""

from __future__ import annotations

from synergon.stores.memory.tables import Tables


def next_backoff_end(tables: Tables, now: int) -> int | None:
    """When the next back-off of a server ends."""
    moments = (server.backs_off_until for provider in tables.providers.values() for server in provider.servers.values())
    return min((moment for moment in moments if moment is not None and moment > now), default=None)
