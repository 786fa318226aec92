"""Statistics in the PostgreSQL store, where a producer may write numbers but not read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synergon.stores.sql_rows.statistics_rows import StatisticsRows as SqlStatisticsRows


class StatisticsRows(SqlStatisticsRows):
    """Adapts `stores.sql_rows.statistics_rows` to the PostgreSQL store."""

    __slots__ = ()

    async def _write(self, values: Sequence[tuple[Any, ...]]) -> None:
        """Replace the rows that exist, then insert the others. No other transaction writes these rows: they belong to
        one engine, or are merged under a lock."""
        columns = [list(column) for column in zip(*values, strict=True)]
        if values and await self._sql.run("replace_statistics", *columns) < len(values):
            await self._sql.run("add_statistics", *columns)
