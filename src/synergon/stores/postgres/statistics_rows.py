"""Statistics in the PostgreSQL store: implements `stores.session.StatisticsRows` with the statements of
`sql/statistics.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from synergon.model.task_statistics import SPANS
from synergon.stores import session as port
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import StatisticsRow


class StatisticsRows(port.StatisticsRows):
    """Implements `stores.session.StatisticsRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def write(self, rows: Sequence[StatisticsRow]) -> None:
        """Replace the rows that exist, then insert the others, in the order of their keys. Only this transaction
        writes these rows: they are of one engine, or the merge of rows is locked."""
        values = sorted(
            (row.span, row.at, row.kind, row.queue, row.source, msgspec.json.encode(row.numbers).decode())
            for row in rows
        )
        if not values:
            return
        columns = [list(column) for column in zip(*values, strict=True)]
        if await self._transaction.run("replace_statistics", *columns) < len(values):
            await self._transaction.run("add_statistics", *columns)

    async def since(self, span: int, moment: int, kind: str | None, queue: str | None) -> list[StatisticsRow]:
        return await self._transaction.typed(StatisticsRow, "statistics_since", span, moment, kind, queue)

    async def oldest(self, span: int, before: int) -> int | None:
        found: int | None = await self._transaction.value("oldest_statistics", span, before)
        return found

    async def take(self, span: int, at: int) -> list[StatisticsRow]:
        return await self._transaction.typed(StatisticsRow, "take_statistics", span, at)

    async def prune(self, age: int, limit: int) -> None:
        for span in SPANS:
            await self._transaction.run("prune_statistics", span, age, limit)
