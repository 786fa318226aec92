"""Schedules, in the PostgreSQL store: the primitives of `stores.session.ScheduleRows` with its statements."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from msgspec.structs import astuple

from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ScheduleRow


class ScheduleRows:
    """Implements `stores.session.ScheduleRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def add(self, row: ScheduleRow) -> bool:
        """Insert a schedule. False if there is one with this name."""
        return await self._transaction.run("add_schedule", *_values(row)) == 1

    async def due(self, now: int, declared: Collection[str], limit: int) -> list[ScheduleRow]:
        """Lock and read the first schedules that are due, except those that another transaction has locked."""
        return await self._transaction.typed(ScheduleRow, "due_schedules", now, list(declared), limit)

    async def locked(self, names: Collection[str]) -> dict[str, ScheduleRow]:
        """Lock and read the schedules with these names."""
        rows = await self._transaction.typed(ScheduleRow, "schedules_named", list(names))
        return {row.name: row for row in rows}

    async def write(self, rows: Sequence[tuple[int | None, ScheduleRow]]) -> int:
        """Replace each row whose `next_at` still is the given one, in one statement."""
        columns = zip(*((old_next_at, *_values(row)) for old_next_at, row in rows), strict=True)
        return await self._transaction.run("write_schedules", *map(list, columns))

    async def delete(self, name: str) -> bool:
        """Delete a schedule."""
        return await self._transaction.run("delete_schedule", name) == 1

    async def all(self) -> list[ScheduleRow]:
        """All schedules, by name."""
        return await self._transaction.typed(ScheduleRow, "schedules")

    async def next_due(self, declared: Collection[str]) -> int | None:
        """When the next schedule is due."""
        found: int | None = await self._transaction.value("next_schedule", list(declared))
        return found

    async def live_tasks(self, ids: Collection[int]) -> set[int]:
        """Those of these tasks that have not ended."""
        return set(await self._transaction.ids("live_of", list(ids)))


def _values(row: ScheduleRow) -> tuple[Any, ...]:
    name, definition, *others = astuple(row)
    return name, definition.decode(), *others
