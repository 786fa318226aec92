"""Limits in the PostgreSQL store: takes a lock, because other transactions may look for a limit while it is
declared."""

from __future__ import annotations

from synergon.stores.sql_rows.limit_rows import LimitRows as SqlLimitRows


class LimitRows(SqlLimitRows):
    """Adapts `stores.sql_rows.limit_rows` to the PostgreSQL store."""

    __slots__ = ()

    async def exclude_unlimited(self) -> None:
        """Wait for transactions that found no limit of a key queue (`find_no_limit`), and block new ones until this
        transaction ends."""
        await self._sql.rows("make_limit")
