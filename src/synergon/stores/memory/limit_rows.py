"""Limits in the memory store: implements `stores.claim_primitives.LimitRows` over the store's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import State
from synergon.model.limits import NewLimit, NewRate
from synergon.stores import claim_primitives as port
from synergon.stores.memory.entries import Limit
from synergon.stores.rows import KeyQueueTotal, LimitRow, PermitCount

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class LimitRows(port.LimitRows):
    """Implements `stores.claim_primitives.LimitRows` for the memory store."""

    __slots__ = ("_tables",)

    def __init__(self, session: Session) -> None:
        self._tables: Final = session.tables

    async def declared(self, names: Iterable[str]) -> dict[str, str]:
        limits = self._tables.limits
        return {name: limits[name].declared for name in names if name in limits}

    async def exclude_unlimited(self) -> None:
        """Does nothing: no other transaction runs concurrently."""

    async def declare(self, limit: NewLimit, declared: str) -> bool:
        """Insert a limit, or replace its value, rate and batch. Returns True."""
        known = self._tables.limits.get(limit.name)
        next_at = None if known is None else known.next_at
        self._tables.limits[limit.name] = Limit(declared, limit.value, limit.rate, limit.batch, next_at)
        return True

    async def set_value(self, name: str, value: int | None) -> bool:
        limit = self._tables.limits.get(name)
        if limit is None or limit.batch is not None:
            return False
        limit.value = value
        return True

    async def set_rate(self, name: str, rate: NewRate | None, latest: int) -> bool:
        limit = self._tables.limits.get(name)
        if limit is None or limit.batch is not None:
            return False
        limit.rate = rate
        limit.next_at = None if limit.next_at is None else min(limit.next_at, latest)
        return True

    async def set_next_starts(self, moments: Mapping[str, int]) -> None:
        for name, moment in moments.items():
            self._tables.limits[name].next_at = moment

    async def all(self) -> list[LimitRow]:
        return [limit.row(name) for name, limit in sorted(self._tables.limits.items())]

    async def held(self) -> list[PermitCount]:
        """The permits that each running task holds."""
        return [
            PermitCount(row.holds or (), None if row.provider is None else row.server, 1)
            for row in self._tables.held.values()
        ]

    async def key_queue_totals(self) -> list[KeyQueueTotal]:
        totals: Counter[tuple[str, State]] = Counter()
        for key_queue in self._tables.key_queues.values():
            totals[key_queue.kind, State.RUNNING] += key_queue.running
            totals[key_queue.kind, State.WAITING] += key_queue.waiting_count
        return [KeyQueueTotal(kind, state, count) for (kind, state), count in totals.items()]
