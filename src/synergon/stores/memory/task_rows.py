"""Live tasks and the history in the memory store: implements `stores.session.TaskRows` over the store's tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergon.model.lifecycle import FINAL, Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.memory.row import Row, record_of
from synergon.stores.rows import ChangedTask, FinalTask, FinishedClaim, KeyHolder, KeyName, LiveTask
from synergon.stores.session import NO_RESULTS

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session
    from synergon.stores.memory.tables import Tables

RUNNING: Final = State.RUNNING


class TaskRows:
    """Implements `stores.session.TaskRows` for the memory store."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def running(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """The running tasks with these ids."""
        return {row.id: _live(row) for row in self._rows(ids) if row.state is RUNNING}

    async def live(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """The live tasks with these ids."""
        return {row.id: _live(row) for row in self._rows(ids) if row.state not in FINAL}

    async def final(self, ids: Iterable[int]) -> dict[int, FinalTask]:
        """The tasks of the history with these ids."""
        return {row.id: _final(row) for row in self._rows(ids) if row.state in FINAL}

    async def records(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        """The tasks with these ids, live or final, as the records that users get."""
        return {row.id: record_of(row) for row in self._rows(ids)}

    async def finished_claims(self, ids: Iterable[int]) -> dict[int, FinishedClaim]:
        """The last finished claim of each of these tasks, live or final."""
        return {
            row.id: FinishedClaim(row.id, row.finished_no, row.state, row.task.kind)
            for row in self._rows(ids)
            if row.finished_no is not None
        }

    def _rows(self, ids: Iterable[int]) -> Iterator[Row]:
        rows = self._session.tables.rows
        return (row for task_id in ids if (row := rows.get(task_id)) is not None)

    async def end(
        self,
        tasks: Sequence[LiveTask],
        state: State,
        reason: Reason | None,
        *,
        results: Mapping[int, bytes | None] = NO_RESULTS,
        by_owner: bool = False,
    ) -> None:
        """Move live tasks to the history with these results. `by_owner`: the node that claimed the tasks ends them."""
        session = self._session
        tables, now = session.tables, session.now
        for task in tasks:
            row = tables.rows[task.id]
            row.result = results.get(task.id)
            tables.end(row, state, reason, now)
            if by_owner:
                row.finished_no = row.claim_no

    async def release(
        self,
        task: LiveTask,
        *,
        delay: int | None = None,
        limit_key: str | None = None,
        protected_for: int = 0,
        by_owner: bool = False,
    ) -> State:
        """Move a running task to `scheduled` (with a delay), `waiting` (if it has or gets a limit key) or `ready`, and
        release its permits. `limit_key` assigns the task to another key queue; `protected_for` protects it from
        preemption for that many microseconds; `by_owner`: the node that claimed the task releases it. Returns the new
        state."""
        tables, now = self._session.tables, self._session.now
        row = tables.rows[task.id]
        if protected_for > 0:
            row.protected_until = max(row.protected_until, now + protected_for)
        if by_owner:
            row.finished_no = row.claim_no
        if limit_key is not None:
            tables.assign_key(row, limit_key, now)
        else:
            tables.requeue(row, row.run_at if delay is None else now + delay, now)
        return row.state

    async def charge(
        self, task_id: int, *, attempts: int = 0, crashes: int = 0, errors: Sequence[ErrorRecord] | None = None
    ) -> None:
        """Subtract attempts from a running task, add crashes, and replace its list of errors."""
        row = self._session.tables.rows[task_id]
        row.attempts = max(row.attempts - attempts, 0)
        row.crashes += crashes
        if errors is not None:
            row.errors = tuple(errors)

    async def set_owner_deaths(self, task_id: int, owner_deaths: int) -> None:
        """Set how many owners of a running task have died."""
        self._session.tables.rows[task_id].owner_deaths = owner_deaths

    async def set_errors(self, task_id: int, errors: Sequence[ErrorRecord]) -> None:
        """Replace the list of errors of a live task."""
        self._session.tables.rows[task_id].errors = tuple(errors)

    async def set_requirements(self, task_id: int, requirements: str) -> None:
        """Replace the text of the requirements of a live task."""
        self._session.tables.set_requirements(self._session.tables.rows[task_id], requirements)

    async def report(self, task_id: int, claim_no: int, progress: Progress | None, *, is_overdue: bool) -> bool:
        """Write the progress and overdue mark of a running attempt. False if the claim is stale."""
        row = self._session.tables.rows.get(task_id)
        if row is None or row.claim_no != claim_no or row.state is not RUNNING:
            return False
        if progress is not None:
            row.progress = progress
        row.overdue = row.overdue or is_overdue
        return True

    async def request_cancel(self, task_id: int) -> None:
        """Mark a running task, so that its node cancels the attempt."""
        self._session.tables.rows[task_id].cancel_requested = True

    async def extend_timeout(self, task_id: int, extra: int, at_most: int) -> None:
        """Add microseconds to the timeout of a running task's attempt."""
        row = self._session.tables.rows[task_id]
        row.extended_by = min((row.extended_by or 0) + extra, at_most)

    async def set_meta(self, task: LiveTask | FinalTask, meta: bytes) -> None:
        """Replace the metadata of a task, live or final."""
        row = self._session.tables.rows[task.id]
        row.task = replace(row.task, meta=meta)

    async def delete(self, task_id: int) -> None:
        """Delete a live task that is not running."""
        self._session.tables.remove(self._session.tables.rows[task_id])

    async def delete_final(self, task: FinalTask) -> None:
        """Delete a task from the history."""
        self._session.tables.remove(self._session.tables.rows[task.id])

    async def prune(self, state: State, age: int, limit: int) -> int:
        """Delete at most `limit` tasks of the history that ended in this state more than `age` ago, oldest first, and
        store for readers of final events how far the history is pruned. Returns the number of deleted tasks."""
        tables, ended_before = self._session.tables, self._session.now - age
        # Rows are in the order of their ends, and the clock never runs back: the first young one ends the search.
        old = takewhile(lambda row: (row.finished_at or 0) < ended_before, tables.ended[state].values())
        rows = list(islice(old, limit))
        for row in rows:
            tables.pruned[state, row.task.kind] = row.ended_no
            tables.remove(row)
        return len(rows)

    async def revive(self, task: FinalTask) -> State | None:
        """Move a task of the history back to the live tasks. Returns the new state; None if a live task holds the key
        of the task."""
        tables = self._session.tables
        row = tables.rows[task.id]
        if tables.holder(row.task) is not None:
            return None
        tables.revive(row, self._session.now)
        return row.state

    async def add(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks without keys."""
        return [self._add(task) for task in tasks]

    async def add_keyed(self, task: NewTask) -> Insertion | None:
        """Insert a task with a key. None if a live task holds the key."""
        return self._add(task) if self._session.tables.holder(task) is None else None

    def _add(self, task: NewTask) -> Insertion:
        now = self._session.now
        row = self._session.tables.add(task, _due(task.run_at, task.delay, now), now)
        return Insertion(row.id, True, row.state)

    async def replace(self, holder: KeyHolder, task: NewTask) -> State:
        """Write a new task into the row of a live task that does not run. Returns the new state."""
        tables, now = self._session.tables, self._session.now
        row = tables.rows[holder.id]
        tables.replace(row, task, _due(task.run_at, task.delay, now), now)
        return row.state

    async def key_holder(self, kind: str, key: str) -> KeyHolder | None:
        """The live task of the kind that holds the key. None if there is none."""
        row = self._session.tables.holders.get((kind, key))
        return None if row is None else _holder(row)

    async def key_holders(self, names: Collection[KeyName]) -> dict[KeyName, KeyHolder]:
        """The live tasks that hold these keys. A key that no live task holds is missing."""
        holders = self._session.tables.holders
        return {name: _holder(holders[name]) for name in names if name in holders}

    async def reschedule(self, task_id: int, run_at: int | None, delay: int | None) -> ChangedTask | None:
        """Change when a scheduled or ready task is due. None if it is in another state."""
        tables, now = self._session.tables, self._session.now
        row = tables.rows.get(task_id)
        if row is None or row.state not in (State.SCHEDULED, State.READY):
            return None
        row.release_reservation()
        tables.requeue(row, _due(run_at, delay, now), now)
        return _changed(row)

    async def set_priority(self, task_id: int, priority: int) -> ChangedTask | None:
        """Change the priority of a task that is live, not running and not a command. None for any other task."""
        row = self._session.tables.rows.get(task_id)
        if row is None or row.state is RUNNING or row.state in FINAL or row.task.is_command:
            return None
        self._session.tables.reprioritize(row, priority)
        return _changed(row)

    async def expired(self, limit: int) -> list[LiveTask]:
        """Expired tasks that are not ended yet, earliest expiry first. The caller ends all of them."""
        return [_live(row) for row in self._session.tables.expiry.due(self._session.now, limit)]

    async def make_due_ready(self, limit: int) -> list[ChangedTask]:
        """Move due tasks from `scheduled` to `waiting` (if they have a limit key) or `ready`."""
        tables, now = self._session.tables, self._session.now
        due = tables.due.due(now, limit)
        for row in due:
            tables.requeue(row, row.run_at, now)
        return [_changed(row) for row in due]

    async def next_due_in(self) -> int | None:
        """Microseconds until the next task is due or expires, or a server's back-off ends. None if there is no such
        moment."""
        tables, now = self._session.tables, self._session.now
        awaited = (tables.due.next_moment(), tables.expiry.next_moment(), _next_backoff_end(tables, now))
        moments = [moment for moment in awaited if moment is not None]
        return max(min(moments) - now, 0) if moments else None

    async def orphans(self, dead: Collection[str], limit: int) -> list[LiveTask]:
        """Running tasks of these nodes, and of nodes that are not registered, by ascending id."""
        tables = self._session.tables
        orphans = {
            row.id: row
            for node_id, rows in tables.running.items()
            if node_id in dead or node_id not in tables.nodes
            for row in rows.values()
        }
        return [_live(orphans[task_id]) for task_id in sorted(orphans)[:limit]]


def _live(row: Row) -> LiveTask:
    task = row.task
    return LiveTask(
        row.id,
        row.claim_no,
        task.kind,
        task.queue,
        row.state,
        row.node_id,
        row.cancel_requested,
        task.is_command,
        row.limit_key,
        task.group_id,
        row.attempts,
        row.crashes,
        row.owner_deaths,
        task.requirements,
        row.errors,
    )


def _final(row: Row) -> FinalTask:
    task = row.task
    return FinalTask(row.id, task.kind, task.queue, row.state, task.key, row.limit_key, task.requirements)


def _holder(row: Row) -> KeyHolder:
    assert row.task.key is not None
    return KeyHolder(row.id, row.task.kind, row.task.key, row.state, row.limit_key)


def _due(run_at: int | None, delay: int | None, now: int) -> int:
    return run_at if run_at is not None else now + (delay or 0)


def _changed(row: Row) -> ChangedTask:
    return ChangedTask(row.id, row.task.kind, row.state, row.limit_key, row.task.group_id)


def _next_backoff_end(tables: Tables, now: int) -> int | None:
    """When the next back-off of a server ends. None if no server backs off."""
    moments = (server.backs_off_until for provider in tables.providers.values() for server in provider.servers.values())
    return min((moment for moment in moments if moment is not None and moment > now), default=None)
