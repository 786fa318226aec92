"""The private store of a test: a memory store that outlives its connections and reports changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from synergon.model.claims import CandidateQuery, ClaimRequest, Claims
from synergon.model.clock import Clock
from synergon.model.groups import NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.limits import NewServer
from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.model.requirements import KIND_DEFAULT, NO_REQUIREMENTS
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, Moved, NewTask, Reprioritizing, Rescheduling
from synergon.stores.memory import MemoryStore
from synergon.stores.memory.row import Row, record_of
from synergon.stores.memory.session import Session
from synergon.stores.memory.tables import Tables

if TYPE_CHECKING:
    from synergon.testing.tester import Tester


class TablesWithoutRequirements(Tables):
    """Tables that drop the requirements of tasks, so that a test runs all tasks on any machine."""

    def add(self, task: NewTask, run_at: int, now: int) -> Row:
        """Insert a task."""
        return super().add(replace(task, requirements=KIND_DEFAULT) if task.requirements else task, run_at, now)

    def replace(self, row: Row, task: NewTask, run_at: int, now: int) -> None:
        """Write a new task into the row of another."""
        super().replace(row, replace(task, requirements=KIND_DEFAULT) if task.requirements else task, run_at, now)


class TestStore(MemoryStore):
    """The store of one test. Every connection of the engine under test uses it."""

    __test__ = False

    def __init__(
        self,
        clock: Clock,
        tester: Tester,
    ) -> None:
        super().__init__(clock=clock)
        self._tester = tester
        self._tables = TablesWithoutRequirements()
        self._session = Session(self._tables)

    async def open(self) -> None:
        """Nothing to do: the store exists from the start."""

    async def close(self) -> None:
        """Keep all tasks: the code under test may disconnect and reconnect, and the test reads them afterwards."""

    def records(self) -> list[TaskRecord]:
        """Every task, by ascending id."""
        with self._transaction() as (tables, _):
            return [record_of(row) for row in tables.rows.values()]

    # ------------------------------------------------------------ claims without requirements

    async def claim(self, request: ClaimRequest) -> Claims:
        """Claim ready tasks, ignoring the requirements of their kinds."""
        return await super().claim(_without_requirements(request))

    async def exchange(self, outcomes: Sequence[FencedOutcome], request: ClaimRequest) -> tuple[list[Verdict], Claims]:
        """Finish and claim, ignoring the requirements of kinds."""
        return await super().exchange(outcomes, _without_requirements(request))

    async def read_candidates(self, query: CandidateQuery) -> list[TaskRecord]:
        """Ready tasks of a kind, ignoring its requirements."""
        return await super().read_candidates(
            replace(query, kind_request=replace(query.kind_request, requirements=NO_REQUIREMENTS))
        )

    # ------------------------------------------------------------ changes that may make tasks due

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store all of `tasks` or none."""
        inserted = await super().insert(tasks)
        await self._tester.note_inserted([insertion.id for insertion in inserted])
        return inserted

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """End tasks that do not run, and mark running ones."""
        moved = await super().cancel(ids, why)
        for move in moved:
            if move.done and move.state is State.RUNNING:
                self._tester.cancel_running(move.id)
        self._tester.store_changed()
        return moved

    async def delete(self, ids: Sequence[int]) -> list[Moved]:
        """Remove tasks that are not running."""
        moved = await super().delete(ids)
        self._tester.store_changed()
        return moved

    async def set_priority(self, changes: Sequence[Reprioritizing]) -> list[Moved]:
        """Change the priority of tasks that do not run."""
        moved = await super().set_priority(changes)
        self._tester.store_changed()
        return moved

    async def retry(self, ids: Sequence[int]) -> list[Moved]:
        """Run final tasks again."""
        moved = await super().retry(ids)
        self._tester.store_changed()
        return moved

    async def reschedule(self, changes: Sequence[Rescheduling]) -> list[Moved]:
        """Change when tasks are due."""
        moved = await super().reschedule(changes)
        self._tester.store_changed()
        return moved

    async def resume(self, queues: Sequence[str]) -> list[bool]:
        """Resume paused queues."""
        resumed = await super().resume(queues)
        self._tester.store_changed()
        return resumed

    async def set_limit(self, name: str, value: int | None) -> bool:
        """Change the value of a limit."""
        is_known = await super().set_limit(name, value)
        self._tester.store_changed()
        return is_known

    async def set_servers(self, provider: str, servers: Sequence[NewServer]) -> bool:
        """Replace the pool of a provider."""
        is_known = await super().set_servers(provider, servers)
        self._tester.store_changed()
        return is_known

    async def open_group(self, group: NewGroup) -> OpenedGroup:
        """Store a group and its tasks."""
        opened = await super().open_group(group)
        then = () if opened.then is None else (opened.then,)
        await self._tester.note_inserted([insertion.id for insertion in (*opened.insertions, *then)])
        return opened

    async def cancel_group(self, group_id: int, why: str | None = None) -> list[Moved]:
        """Cancel all live tasks of a group."""
        moved = await super().cancel_group(group_id, why)
        for move in moved:
            if move.done and move.state is State.RUNNING:
                self._tester.cancel_running(move.id)
        self._tester.store_changed()
        return moved

    async def act(self, order: NewAction) -> AuditRecord:
        """Carry out an operator action and record it."""
        given = await super().act(order)
        if order.verb == "cancel" and given.outcome == "cancel requested":
            self._tester.cancel_running(int(order.subject))
        self._tester.store_changed()
        return given


def _without_requirements(request: ClaimRequest) -> ClaimRequest:
    """The request without the requirements of its kinds."""
    return replace(
        request, kinds=tuple(replace(kind_request, requirements=NO_REQUIREMENTS) for kind_request in request.kinds)
    )
