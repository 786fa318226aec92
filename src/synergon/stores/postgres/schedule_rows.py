"""Schedules, in the PostgreSQL store: the primitives of `stores.session.ScheduleRows` with its statements."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from msgspec.structs import astuple

from synergon.stores import session as port
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ScheduleRow


class ScheduleRows(port.ScheduleRows):
    """Implements `stores.session.ScheduleRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def add(self, row: ScheduleRow) -> bool:
        return await self._transaction.run("add_schedule", *_values(row)) == 1

    async def due(self, now: int, declared: Collection[str], limit: int) -> list[ScheduleRow]:
        return await self._transaction.typed(ScheduleRow, "due_schedules", now, list(declared), limit)

    async def locked(self, names: Collection[str]) -> dict[str, ScheduleRow]:
        rows = await self._transaction.typed(ScheduleRow, "schedules_named", list(names))
        return {row.name: row for row in rows}

    async def write(self, rows: Sequence[tuple[int | None, ScheduleRow]]) -> int:
        """Replace each row whose `next_at` still is the given one, in one statement."""
        columns = zip(*((old_next_at, *_values(row)) for old_next_at, row in rows), strict=True)
        return await self._transaction.run("write_schedules", *map(list, columns))

    async def delete(self, name: str) -> bool:
        return await self._transaction.run("delete_schedule", name) == 1

    async def all(self) -> list[ScheduleRow]:
        return await self._transaction.typed(ScheduleRow, "schedules")

    async def next_due(self, declared: Collection[str]) -> int | None:
        found: int | None = await self._transaction.value("next_schedule", list(declared))
        return found

    async def live_tasks(self, ids: Collection[int]) -> set[int]:
        return set(await self._transaction.ids("live_of", list(ids)))


def _values(row: ScheduleRow) -> tuple[Any, ...]:
    name, definition, *others = astuple(row)
    return name, definition.decode(), *others
