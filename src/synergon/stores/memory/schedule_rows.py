"""Schedules in the memory store: implements `stores.session.ScheduleRows` over the store's tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import FINAL
from synergon.stores import session as port
from synergon.stores.rows import ScheduleRow

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class ScheduleRows(port.ScheduleRows):
    """Implements `stores.session.ScheduleRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    def __init__(self, session: Session) -> None:
        self._tables: Final = session.tables
        self._session: Final = session

    async def add(self, row: ScheduleRow) -> bool:
        return self._tables.schedules.setdefault(row.name, row) is row

    async def due(self, declared: Collection[str], limit: int) -> list[ScheduleRow]:
        due = [(at, row.name, row) for at, row in self._awaited(declared) if at <= self._session.now]
        return [row for _, _, row in sorted(due)[:limit]]

    async def locked(self, names: Collection[str]) -> dict[str, ScheduleRow]:
        return {name: self._tables.schedules[name] for name in names if name in self._tables.schedules}

    async def write(self, rows: Sequence[tuple[int | None, ScheduleRow]]) -> int:
        """Replace each row whose `next_at` has not changed since it was read. Returns the number of replaced rows."""
        written = 0
        for old_next_at, row in rows:
            current = self._tables.schedules.get(row.name)
            if current is not None and current.next_at == old_next_at:
                self._tables.schedules[row.name] = row
                written += 1
        return written

    async def delete(self, name: str) -> bool:
        return self._tables.schedules.pop(name, None) is not None

    async def all(self) -> list[ScheduleRow]:
        return [row for _, row in sorted(self._tables.schedules.items())]

    async def next_due(self, declared: Collection[str]) -> int | None:
        return min((at for at, _ in self._awaited(declared)), default=None)

    async def live_tasks(self, ids: Collection[int]) -> set[int]:
        rows = self._tables.rows
        return {task_id for task_id in ids if task_id in rows and rows[task_id].state not in FINAL}

    def _awaited(self, declared: Collection[str]) -> list[tuple[int, ScheduleRow]]:
        return [
            (row.due_at, row)
            for row in self._tables.schedules.values()
            if row.due_at is not None and (not row.is_declared or row.name in declared)
        ]
