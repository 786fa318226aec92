"""Statistics in the PostgreSQL store, where a producer may write numbers and not read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synergon.stores.sql_rows.statistics_rows import StatisticsRows as SqlStatisticsRows


class StatisticsRows(SqlStatisticsRows):
    """`stores.sql_rows.statistics_rows` for the PostgreSQL store."""

    __slots__ = ()

    async def _write(self, values: Sequence[tuple[Any, ...]]) -> None:
        """Replace the rows that exist, then insert the others. Only this transaction writes these rows: they are of
        one engine, or the merge of rows is locked."""
        columns = [list(column) for column in zip(*values, strict=True)]
        if values and await self._sql.run("replace_statistics", *columns) < len(values):
            await self._sql.run("add_statistics", *columns)
