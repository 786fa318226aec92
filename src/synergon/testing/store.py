"""The private store of a test: a memory store that outlives its connections, and reports changes to the tester."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from synergon.model.claims import CandidateQuery, ClaimRequest, Claims
from synergon.model.clock import Clock
from synergon.model.groups import NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.model.requirements import KIND_DEFAULT, NO_REQUIREMENTS
from synergon.model.schedules import NewSchedule, ScheduleRun
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, Moved, NewTask
from synergon.stores.base_store import Arguments, Result, StoreCall
from synergon.stores.memory import MemoryStore
from synergon.stores.memory.row import Row, record_of
from synergon.stores.memory.session import Session
from synergon.stores.memory.tables import Tables
from synergon.stores.rules import insert, schedules
from synergon.stores.session import drive
from synergon.testing.caller_transactions import CallerTransactions

if TYPE_CHECKING:
    from synergon.testing.tester import Tester


class TablesWithoutRequirements(Tables):
    """Tables that drop the requirements of tasks, so that a test runs all tasks on any machine."""

    def add(self, task: NewTask, run_at: int, now: int) -> Row:
        """Insert a task without its requirements."""
        return super().add(replace(task, requirements=KIND_DEFAULT) if task.requirements else task, run_at, now)

    def replace(self, row: Row, task: NewTask, run_at: int, now: int) -> None:
        """Write a new task, without its requirements, into the row of another."""
        super().replace(row, replace(task, requirements=KIND_DEFAULT) if task.requirements else task, run_at, now)


def wakes(call: StoreCall[Arguments, Result]) -> StoreCall[Arguments, Result]:
    """Wrap a call of the store that may make tasks due: it wakes the drain afterwards. Calls that the drain itself
    makes are not wrapped, because it would never end."""

    async def call_and_wake(store: TestStore, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        answer = await call(store, *arguments, **named)
        store.tester.store_changed()
        return answer

    return call_and_wake


class TestStore(MemoryStore):
    """The store of one test. Every connection of the engine under test uses it."""

    __test__ = False

    def __init__(
        self,
        clock: Clock,
        tester: Tester,
    ) -> None:
        super().__init__(clock=clock)
        self.tester = tester
        self._tables = TablesWithoutRequirements()
        self._session = Session(self._tables)
        self._caller_transactions = CallerTransactions()

    async def open(self) -> None:
        """Does nothing: the store exists from the start."""

    async def close(self) -> None:
        """Does nothing: the code under test may disconnect and reconnect, and the test reads the tasks afterwards."""

    def declare_now(self, definitions: Sequence[NewSchedule]) -> None:
        """Store the schedules that the code under test declares, as the start of a worker does."""
        with self._transaction() as (_, now):
            session = self._session
            assert session is not None, "made with the store"
            session.now = now
            drive(schedules.declare(session, definitions))

    def records(self) -> list[TaskRecord]:
        """Every task, by ascending id."""
        with self._transaction() as (tables, _):
            return [record_of(row) for row in tables.rows.values()]

    # ------------------------------------------------------------ claims without requirements

    async def claim(self, request: ClaimRequest) -> Claims:
        """Claim ready tasks, ignoring the requirements of their kinds."""
        return await super().claim(_without_requirements(request))

    async def exchange(self, outcomes: Sequence[FencedOutcome], request: ClaimRequest) -> tuple[list[Verdict], Claims]:
        """`finish`, then `claim`, ignoring the requirements of kinds."""
        return await super().exchange(outcomes, _without_requirements(request))

    async def read_candidates(self, query: CandidateQuery) -> list[TaskRecord]:
        """Ready tasks of a kind in claim order, ignoring its requirements."""
        return await super().read_candidates(
            replace(query, kind_request=replace(query.kind_request, requirements=NO_REQUIREMENTS))
        )

    # ------------------------------------------------------------ changes that may make tasks due

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store all of `tasks` or none, and notify the tester."""
        inserted = await super().insert(tasks)
        await self.tester.note_inserted([insertion.id for insertion in inserted])
        return inserted

    async def insert_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store tasks when the transaction on the caller's connection commits; at once, if its commit cannot be
        noticed."""
        inserted = self.insert_on_sync(connection, tasks)
        if not self._caller_transactions.can_wait(connection):
            await self.tester.note_inserted([insertion.id for insertion in inserted])
        return inserted

    def insert_on_sync(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """`insert_on` for a caller without an event loop."""
        if not self._caller_transactions.can_wait(connection):
            return self._insert_now(tasks)
        with self._transaction() as (tables, _):
            is_key_taken = any(tables.holder(task) is not None for task in tasks)
            first = tables.last_id + 1
            tables.last_id += 0 if is_key_taken else len(tasks)
        if is_key_taken:
            return self._insert_now(tasks)
        self._caller_transactions.when_committed(connection, lambda: self._insert_as(first, tasks))
        states = [State.READY if task.run_at is None and task.delay is None else State.SCHEDULED for task in tasks]
        return [Insertion(task_id, True, state) for task_id, state in enumerate(states, first)]

    async def open_group_on(self, connection: Any, new: NewGroup) -> OpenedGroup:
        """Store a flow at once, even if the caller's transaction is rolled back later."""
        self._caller_transactions.can_wait(connection)
        return await self.open_group(new)

    def open_group_on_sync(self, connection: Any, new: NewGroup) -> OpenedGroup:
        """`open_group_on` for a caller without an event loop."""
        self._caller_transactions.can_wait(connection)
        opened = drive(super().open_group(new))
        self.tester.store_changed()
        return opened

    def _insert_now(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        inserted = drive(super().insert(tasks))
        self.tester.store_changed()
        return inserted

    def _insert_as(self, first: int, tasks: Sequence[NewTask]) -> None:
        drive(self._transact(_insert_as, first, tasks))
        self.tester.store_changed()

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """Cancel tasks: end those that do not run, and request the end of running attempts."""
        moved = await super().cancel(ids, why)
        for move in moved:
            if move.done and move.state is State.RUNNING:
                self.tester.cancel_running(move.id)
        self.tester.store_changed()
        return moved

    delete = wakes(MemoryStore.delete)
    set_priority = wakes(MemoryStore.set_priority)
    retry = wakes(MemoryStore.retry)
    reschedule = wakes(MemoryStore.reschedule)
    resume = wakes(MemoryStore.resume)
    set_limit = wakes(MemoryStore.set_limit)
    set_servers = wakes(MemoryStore.set_servers)

    async def open_group(self, group: NewGroup) -> OpenedGroup:
        """Store a group and its tasks, and notify the tester."""
        opened = await super().open_group(group)
        then = () if opened.then is None else (opened.then,)
        await self.tester.note_inserted([insertion.id for insertion in (*opened.insertions, *then)])
        return opened

    async def cancel_group(self, group_id: int, why: str | None = None) -> list[Moved]:
        """Cancel all live tasks of a group, and request the end of their running attempts."""
        moved = await super().cancel_group(group_id, why)
        for move in moved:
            if move.done and move.state is State.RUNNING:
                self.tester.cancel_running(move.id)
        self.tester.store_changed()
        return moved

    async def run_schedule(self, name: str, who: str) -> ScheduleRun | None:
        """Create one more task of a schedule."""
        run = await super().run_schedule(name, who)
        if run is not None and run.task is not None:
            await self.tester.note_inserted([run.task.id])
        return run

    async def act(self, order: NewAction) -> AuditRecord:
        """Carry out an operator action and record it, and wake the drain."""
        given = await super().act(order)
        if order.verb == "cancel" and given.outcome == "cancel requested":
            self.tester.cancel_running(int(order.subject))
        self.tester.store_changed()
        return given


def _without_requirements(request: ClaimRequest) -> ClaimRequest:
    """The request without the requirements of its kinds."""
    return replace(
        request, kinds=tuple(replace(kind_request, requirements=NO_REQUIREMENTS) for kind_request in request.kinds)
    )


async def _insert_as(session: Session, first: int, tasks: Sequence[NewTask]) -> None:
    """Insert tasks under ids that they were given before."""
    tables = session.tables
    last_id, tables.last_id = tables.last_id, first - 1
    try:
        await insert.insert(session, tasks)
    finally:
        tables.last_id = last_id
    in_order = sorted(tables.rows.items())
    tables.rows.clear()
    tables.rows.update(in_order)
