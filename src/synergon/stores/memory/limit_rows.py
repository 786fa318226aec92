"""Limits in the memory store: implements `stores.session.LimitRows` over the store's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import State
from synergon.model.limits import NewLimit
from synergon.stores.memory.entries import Limit
from synergon.stores.rows import KeyQueueTotal, LimitRow, PermitCount

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class LimitRows:
    """Implements `stores.session.LimitRows` for the memory store."""

    __slots__ = ("_tables",)

    def __init__(self, session: Session) -> None:
        self._tables: Final = session.tables

    async def declared(self, names: Iterable[str]) -> dict[str, str]:
        """The last declaration of each of these limits, as JSON, without limits that do not exist."""
        limits = self._tables.limits
        return {name: limits[name].declared for name in names if name in limits}

    async def exclude_unlimited(self) -> None:
        """Does nothing: no other transaction runs concurrently."""

    async def declare(self, limit: NewLimit, declared: str) -> bool:
        """Insert a limit, or replace its value and rate. Always True."""
        self._tables.limits[limit.name] = Limit(declared, limit.value, limit.rate)
        return True

    async def set_value(self, name: str, value: int | None) -> bool:
        """Change the value of a limit. False if there is no limit of this name."""
        limit = self._tables.limits.get(name)
        if limit is None:
            return False
        limit.value = value
        return True

    async def all(self) -> list[LimitRow]:
        """All limits, by name."""
        return [
            LimitRow(
                name,
                limit.value,
                None if limit.rate is None else limit.rate.every,
                None if limit.rate is None else limit.rate.burst,
            )
            for name, limit in sorted(self._tables.limits.items())
        ]

    async def held(self) -> list[PermitCount]:
        """The permits that each running task holds."""
        return [
            PermitCount(row.holds or (), None if row.provider is None else row.server, 1)
            for row in self._tables.held.values()
        ]

    async def key_queue_totals(self) -> list[KeyQueueTotal]:
        """The numbers of running and waiting tasks in key queues, by kind."""
        totals: Counter[tuple[str, State]] = Counter()
        for key_queue in self._tables.key_queues.values():
            totals[key_queue.kind, State.RUNNING] += key_queue.running
            totals[key_queue.kind, State.WAITING] += key_queue.waiting_count
        return [KeyQueueTotal(kind, state, count) for (kind, state), count in totals.items()]
