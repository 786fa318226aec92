"""Statistics in the SQLite store: implements `stores.session.StatisticsRows` with the statements of
`sql/statistics.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from synergon.model.task_statistics import SPANS
from synergon.stores import session as port
from synergon.stores.rows import StatisticsRow
from synergon.stores.sqlite.transaction import Transaction


class StatisticsRows(port.StatisticsRows):
    """Implements `stores.session.StatisticsRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def write(self, rows: Sequence[StatisticsRow]) -> None:
        self._transaction.run_each(
            "write_statistics",
            [
                (row.span, row.at, row.kind, row.queue, row.source, msgspec.json.encode(row.numbers).decode())
                for row in rows
            ],
        )

    async def since(self, span: int, moment: int, kind: str | None, queue: str | None) -> list[StatisticsRow]:
        return self._transaction.typed(
            StatisticsRow, "statistics_since", span=span, moment=moment, kind=kind, queue=queue
        )

    async def oldest(self, span: int, before: int) -> int | None:
        found: int | None
        (found,) = self._transaction.row("oldest_statistics", span, before)
        return found

    async def take(self, span: int, at: int) -> list[StatisticsRow]:
        return self._transaction.typed(StatisticsRow, "take_statistics", span, at)

    async def prune(self, age: int, limit: int) -> None:
        for span in SPANS:
            self._transaction.run("prune_statistics", span, self._transaction.now - age, limit)
