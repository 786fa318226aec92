"""Servers that back off."""

from __future__ import annotations

from synergon.stores.memory.tables import Tables


def next_backoff_end(tables: Tables, now: int) -> int | None:
    """When the first server that rests may be tried again."""
    moments = (server.backs_off_until for provider in tables.providers.values() for server in provider.servers.values())
    return min((moment for moment in moments if moment is not None and moment > now), default=None)
