"""Dependencies in the memory store: implements `stores.task_primitives.DependencyRows` over the store's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import FINAL, Reason, State
from synergon.stores import task_primitives as port
from synergon.stores.memory.row import Row, changed_task
from synergon.stores.rows import ChangedTask, DependencyRow, NeededTask

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class DependencyRows(port.DependencyRows):
    """Implements `stores.task_primitives.DependencyRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._tables: Final = session.tables

    async def add(self, rows: Sequence[DependencyRow]) -> None:
        for row in rows:
            self._tables.dependencies.put(row)

    async def lock_needed(self, ids: Collection[int]) -> dict[int, State]:
        return {row.id: row.state for row in self._rows(ids)}

    def _rows(self, ids: Iterable[int]) -> list[Row]:
        rows = self._tables.rows
        return [rows[task_id] for task_id in ids if task_id in rows]

    async def mark_needed(self, ids: Collection[int]) -> None:
        for row in self._rows(ids):
            row.has_dependents = True

    async def of(self, ids: Collection[int]) -> list[DependencyRow]:
        return sorted(self._tables.dependencies.of(ids), key=_position)

    async def on(self, ids: Collection[int]) -> list[DependencyRow]:
        return list(self._tables.dependencies.on(ids))

    async def open_on(self, ids: Collection[int]) -> list[DependencyRow]:
        return [row for row in self._tables.dependencies.on(ids) if row.ended_as is None]

    async def lock_dependents(self, ids: Collection[int], others: Collection[int]) -> list[int]:
        return list({row.task_id for row in await self.open_on(ids)}.union(others))

    async def doomed(self, ids: Collection[int]) -> list[int]:
        return self._downstream(ids, lambda row: row.ended_as is None)

    async def cancelled_with(self, ids: Collection[int]) -> list[int]:
        return self._downstream(ids, self._was_cancelled)

    def _was_cancelled(self, dependency: DependencyRow) -> bool:
        row = self._tables.rows.get(dependency.task_id)
        return row is not None and row.state is State.CANCELLED and row.reason is Reason.DEPENDENCY

    def _downstream(self, ids: Iterable[int], is_concerned: Callable[[DependencyRow], bool]) -> list[int]:
        found = dict.fromkeys(ids)
        to_visit = list(found)
        while to_visit:
            for row in self._tables.dependencies.on([to_visit.pop()]):
                if row.task_id not in found and row.if_fails == "cancel" and is_concerned(row):
                    found[row.task_id] = None
                    to_visit.append(row.task_id)
        return list(found)

    async def close(self, ended: Mapping[int, str]) -> None:
        for row in await self.open_on(ended):
            self._tables.dependencies.set_end(row, str(ended[row.needs_id]))

    async def reopen(self, rows: Sequence[DependencyRow]) -> None:
        for row in rows:
            self._tables.dependencies.set_end(row, None)

    async def release(self, ids: Sequence[int]) -> list[ChangedTask]:
        released = [
            row for row in self._rows(ids) if row.is_dependent and not self._tables.dependencies.has_open(row.id)
        ]
        for row in released:
            self._tables.release(row, self._session.now)
        return [changed_task(row) for row in released]

    async def make_dependent(self, ids: Collection[int]) -> list[ChangedTask]:
        rows = [row for row in self._rows(ids) if row.state not in FINAL and row.state is not State.RUNNING]
        for row in rows:
            self._tables.make_dependent(row)
        return [changed_task(row) for row in rows]

    async def defer(self, ids: Collection[int]) -> None:
        for row in self._rows(ids):
            self._tables.defer_dependent(row)

    async def unsettled(self, limit: int) -> list[int]:  # noqa: ARG002  it is the port's
        unsettled, now = self._tables.unsettled, self._session.now
        for task_id in [task_id for task_id, row in unsettled.items() if not _is_unsettled(row)]:
            del unsettled[task_id]
        return [row.id for row in unsettled.values() if row.run_at <= now]

    async def read(self, ids: Collection[int], most_bytes: int) -> list[NeededTask]:
        found = [(row, self._tables.rows.get(row.needs_id)) for row in await self.of(ids)]
        sizes: Counter[int] = Counter()
        for row, needed in found:
            sizes[row.task_id] += 0 if needed is None else len(needed.result or b"")
        return [_needed(row, needed, has_result=sizes[row.task_id] <= most_bytes) for row, needed in found]

    async def needed_by(self, task_id: int) -> int | None:
        rows = self._tables.rows
        found = (row.task_id for row in self._tables.dependencies.on([task_id]))
        return next((found_id for found_id in found if rows[found_id].state not in FINAL), None)

    async def delete_of(self, ids: Collection[int]) -> None:
        for task_id in ids:
            self._tables.dependencies.forget(task_id)


def _needed(dependency: DependencyRow, row: Row | None, *, has_result: bool) -> NeededTask:
    named = (dependency.task_id, dependency.needs_id, dependency.position, dependency.item, dependency.ended_as)
    if row is None:
        return NeededTask(*named, None, None, None, None)
    return NeededTask(*named, row.task.kind, row.state, row.reason, row.result if has_result else None)


def _is_unsettled(row: Row) -> bool:
    return row.is_dependent and row.state is State.SCHEDULED


def _position(row: DependencyRow) -> tuple[int, int, int]:
    return row.task_id, row.position, -1 if row.item is None else row.item
