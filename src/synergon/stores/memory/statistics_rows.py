"""Statistics in the memory store: implements `stores.session.StatisticsRows` over the store's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from synergon.stores import session as port
from synergon.stores.rows import StatisticsRow

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class StatisticsRows(port.StatisticsRows):
    """Implements `stores.session.StatisticsRows` for the memory store."""

    __slots__ = ("_rows", "_session")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._rows: Final = session.tables.statistics

    async def write(self, rows: Sequence[StatisticsRow]) -> None:
        for row in rows:
            self._rows[row.span, row.at, row.kind, row.queue, row.source] = row

    async def since(self, span: int, moment: int, kind: str | None, queue: str | None) -> list[StatisticsRow]:
        return [
            row
            for row in self._rows.values()
            if row.span == span and row.at >= moment and kind in (None, row.kind) and queue in (None, row.queue)
        ]

    async def oldest(self, span: int, before: int) -> int | None:
        return min((row.at for row in self._rows.values() if row.span == span and row.at < before), default=None)

    async def take(self, span: int, at: int) -> list[StatisticsRow]:
        names = [name for name in self._rows if name[:2] == (span, at)]
        return [self._rows.pop(name) for name in names]

    async def prune(self, age: int, limit: int) -> None:
        old = sorted(name for name, row in self._rows.items() if row.at < self._session.now - age)
        for name in old[:limit]:
            del self._rows[name]
