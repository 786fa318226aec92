"""Limits in the PostgreSQL store, where other transactions may read a limit while it is declared."""

from __future__ import annotations

from synergon.stores.sql_rows.limit_rows import LimitRows as SqlLimitRows


class LimitRows(SqlLimitRows):
    """`stores.sql_rows.limit_rows` for the PostgreSQL store."""

    __slots__ = ()

    async def exclude_unlimited(self) -> None:
        """Wait for transactions that read the kind's limit as missing, and block new ones that read it."""
        await self._sql.rows("make_limit")
