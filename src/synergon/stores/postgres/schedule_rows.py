"""Schedules in the PostgreSQL store: the statement that finds due schedules also reads the clock."""

from __future__ import annotations

from collections.abc import Collection

from synergon.model.record import from_datetime
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ScheduleRow
from synergon.stores.sql_rows.schedule_rows import ScheduleRows as SqlScheduleRows
from synergon.stores.typed_rows import field_names, read_rows


class ScheduleRows(SqlScheduleRows):
    """Adapts `stores.sql_rows.schedule_rows` to the PostgreSQL store."""

    __slots__ = ()
    _sql: Transaction

    async def due(self, declared: Collection[str], limit: int) -> list[ScheduleRow]:
        """The due schedules. The statement also reads the clock, so that the tasks of the schedules start a round trip
        earlier."""
        rows = await self._sql.rows("due_schedules", list(declared), limit)
        if not rows:
            return []
        self._sql.clock = from_datetime(rows[0]["now"])
        return read_rows(ScheduleRow, field_names(ScheduleRow), [row[1:] for row in rows], self._sql.unreadable)
