"""Schedules in the SQLite store, whose columns may contain text that is not UTF-8."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec.structs import astuple

from synergon.stores.rows import DueSchedule, ScheduleRow
from synergon.stores.sql_rows.schedule_rows import ScheduleRows as SqlScheduleRows


class ScheduleRows(SqlScheduleRows):
    """Adapts `stores.sql_rows.schedule_rows` to the SQLite store."""

    __slots__ = ()

    async def next_due(self, declared: Collection[str]) -> int | None:
        """When the next schedule is due. Reads several rows, because rows whose names are not UTF-8 are left out."""
        found = await self._sql.typed(DueSchedule, "next_schedules", list(declared))
        return found[0].due_at if found else None

    def _values(self, row: ScheduleRow) -> tuple[Any, ...]:
        """The parameters that write a row. The definition is not decoded: a firing also writes rows whose definition is
        not UTF-8."""
        *others, past = astuple(row)
        return *others, msgspec.json.encode(past)
