"""Schedules in the SQLite store, whose columns may contain text that is not UTF-8."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec.structs import astuple

from synergon.stores.rows import DueSchedule, ScheduleRow
from synergon.stores.sql_rows.schedule_rows import ScheduleRows as SqlScheduleRows


class ScheduleRows(SqlScheduleRows):
    """`stores.sql_rows.schedule_rows` for the SQLite store."""

    __slots__ = ()

    async def next_due(self, declared: Collection[str]) -> int | None:
        """Reads several rows, because one whose name is not UTF-8 is left out."""
        found = await self._sql.typed(DueSchedule, "next_schedules", list(declared))
        return found[0].due_at if found else None

    def _values(self, row: ScheduleRow) -> tuple[Any, ...]:
        """The definition stays as it is: a firing also writes a row whose definition cannot be read."""
        *others, past = astuple(row)
        return *others, msgspec.json.encode(past)
