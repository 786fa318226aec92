"""Schedules, in the SQLite store: the primitives of `stores.session.ScheduleRows` with its statements."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import astuple

from synergon.stores import session as port
from synergon.stores.rows import DueSchedule, ScheduleRow
from synergon.stores.sqlite.transaction import Transaction, as_json


class ScheduleRows(port.ScheduleRows):
    """Implements `stores.session.ScheduleRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def add(self, row: ScheduleRow) -> bool:
        return self._transaction.run("add_schedule", *astuple(row)) == 1

    async def due(self, now: int, declared: Collection[str], limit: int) -> list[ScheduleRow]:
        return self._transaction.typed(ScheduleRow, "due_schedules", now=now, declared=as_json(declared), limit=limit)

    async def locked(self, names: Collection[str]) -> dict[str, ScheduleRow]:
        rows = self._transaction.typed(ScheduleRow, "schedules_named", as_json(names))
        return {row.name: row for row in rows}

    async def write(self, rows: Sequence[tuple[int | None, ScheduleRow]]) -> int:
        """Replace each row whose `next_at` still is the given one."""
        written = 0
        for old_next_at, row in rows:
            name, definition, is_declared, anchor, _created_at, *others = astuple(row)
            written += self._transaction.run(
                "write_schedule", definition, is_declared, anchor, *others, name, old_next_at
            )
        return written

    async def delete(self, name: str) -> bool:
        return self._transaction.run("delete_schedule", name) == 1

    async def all(self) -> list[ScheduleRow]:
        return self._transaction.typed(ScheduleRow, "schedules")

    async def next_due(self, declared: Collection[str]) -> int | None:
        found = self._transaction.typed(DueSchedule, "next_schedules", as_json(declared))
        return found[0].due_at if found else None

    async def live_tasks(self, ids: Collection[int]) -> set[int]:
        return set(self._transaction.ids("live_of", as_json(ids)))
