"""Schedules: implements `stores.session.ScheduleRows` with the statements of `sql/schedules.sql`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from synergon.stores import session as port
from synergon.stores.rows import ScheduleRow
from synergon.stores.sql_rows.named_statements import SqlRows


class ScheduleRows(SqlRows, port.ScheduleRows):
    """Implements `stores.session.ScheduleRows`."""

    __slots__ = ()

    async def add(self, row: ScheduleRow) -> bool:
        return await self._sql.run("add_schedule", *self._values(row)) == 1

    async def due(self, declared: Collection[str], limit: int) -> list[ScheduleRow]:
        return await self._sql.typed(ScheduleRow, "due_schedules", list(declared), limit)

    async def locked(self, names: Collection[str]) -> dict[str, ScheduleRow]:
        return {row.name: row for row in await self._sql.typed(ScheduleRow, "schedules_named", list(names))}

    async def write(self, rows: Sequence[tuple[int | None, ScheduleRow]]) -> int:
        return await self._sql.run_all(
            "write_schedules", [(old_next_at, *self._values(row)) for old_next_at, row in rows]
        )

    async def delete(self, name: str) -> bool:
        return await self._sql.run("delete_schedule", name) == 1

    async def all(self) -> list[ScheduleRow]:
        return await self._sql.typed(ScheduleRow, "schedules")

    async def next_due(self, declared: Collection[str]) -> int | None:
        found: int | None = await self._sql.value("next_schedule", list(declared))
        return found

    async def live_tasks(self, ids: Collection[int]) -> set[int]:
        return set(await self._sql.ids("live_of", list(ids)))

    def _values(self, row: ScheduleRow) -> tuple[Any, ...]:
        name, definition, *others, past = astuple(row)
        return name, definition.decode(), *others, msgspec.json.encode(past).decode()
