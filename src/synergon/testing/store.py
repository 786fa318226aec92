"""The private store of a test: a memory store that outlives its connections and says when it changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from synergon.clock import Clock
from synergon.lifecycle import State
from synergon.records import Insertion, Moved, NewTask, Rescheduling, TaskRecord
from synergon.stores.memory import MemoryStore
from synergon.stores.memory.row import record_of
from synergon.stores.memory.tables import Tables


class TestStore(MemoryStore):
    """One for each test; every connection of the engine under test leads to it."""

    __test__ = False

    def __init__(
        self,
        clock: Clock,
        *,
        on_insert: Callable[[Sequence[int]], Awaitable[None]],
        on_change: Callable[[], None],
        on_cancel: Callable[[int], None],
    ) -> None:
        super().__init__(clock=clock)
        self._on_insert = on_insert
        self._on_change = on_change
        self._on_cancel = on_cancel
        self._tables = Tables()

    async def open(self) -> None:
        """It is there from the start."""

    async def close(self) -> None:
        """Keep everything: the code under test may disconnect and come back, and the test looks at it afterwards."""

    def records(self) -> list[TaskRecord]:
        """Every task, in the order in which they came."""
        with self._transaction() as (tables, _):
            return [record_of(row) for row in tables.rows.values()]

    # ------------------------------------------------------------ what may make something due

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store all of `tasks` or none."""
        inserted = await super().insert(tasks)
        await self._on_insert([insertion.id for insertion in inserted])
        return inserted

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """End tasks that wait; record the wish for those that run."""
        moved = await super().cancel(ids, why)
        for move in moved:
            if move.done and move.state is State.RUNNING:
                self._on_cancel(move.id)
        return moved

    async def retry(self, ids: Sequence[int]) -> list[Moved]:
        """Run ended tasks again."""
        moved = await super().retry(ids)
        self._on_change()
        return moved

    async def reschedule(self, changes: Sequence[Rescheduling]) -> list[Moved]:
        """Change when tasks are due."""
        moved = await super().reschedule(changes)
        self._on_change()
        return moved

    async def resume(self, queues: Sequence[str]) -> list[bool]:
        """Undo `pause`."""
        resumed = await super().resume(queues)
        self._on_change()
        return resumed
