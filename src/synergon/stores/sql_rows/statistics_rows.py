"""Statistics: implements `stores.session.StatisticsRows` with the statements of `sql/statistics.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from synergon.model.task_statistics import SPANS
from synergon.stores import session as port
from synergon.stores.rows import StatisticsRow
from synergon.stores.sql_rows.named_statements import SqlRows


class StatisticsRows(SqlRows, port.StatisticsRows):
    """Implements `stores.session.StatisticsRows`."""

    __slots__ = ()

    async def write(self, rows: Sequence[StatisticsRow]) -> None:
        values = [
            (row.span, row.at, row.kind, row.queue, row.source, msgspec.json.encode(row.numbers).decode())
            for row in rows
        ]
        await self._write(sorted(values))

    async def _write(self, values: Sequence[tuple[Any, ...]]) -> None:
        await self._sql.run_all("write_statistics", values)

    async def since(self, span: int, moment: int, kind: str | None, queue: str | None) -> list[StatisticsRow]:
        return await self._sql.typed(StatisticsRow, "statistics_since", span, moment, kind, queue)

    async def oldest(self, span: int, before: int) -> int | None:
        found: int | None = await self._sql.value("oldest_statistics", span, before)
        return found

    async def take(self, span: int, at: int) -> list[StatisticsRow]:
        return await self._sql.typed(StatisticsRow, "take_statistics", span, at)

    async def prune(self, age: int, limit: int) -> None:
        for span in SPANS:
            await self._sql.run("prune_statistics", span, age, limit)
