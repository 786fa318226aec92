"""Live tasks and the history in the memory store: implements `stores.task_primitives.TaskRows` over the store's
tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergon.model.attempts import AttemptRecord
from synergon.model.lifecycle import FINAL, Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.stores import task_primitives as port
from synergon.stores.memory.row import Row, changed_task, record_of
from synergon.stores.rows import ChangedTask, FinalTask, FinishedClaim, KeyHolder, KeyName, LiveTask, SucceededTask
from synergon.stores.task_primitives import NO_RESULTS

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session
    from synergon.stores.memory.tables import Tables

RUNNING: Final = State.RUNNING


class TaskRows(port.TaskRows):
    """Implements `stores.task_primitives.TaskRows` for the memory store."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def running(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        return {row.id: _live(row) for row in self._rows(ids) if row.state is RUNNING}

    async def live(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        return {row.id: _live(row) for row in self._rows(ids) if row.state not in FINAL}

    async def final(self, ids: Iterable[int]) -> dict[int, FinalTask]:
        return {row.id: _final(row) for row in self._rows(ids) if row.state in FINAL}

    async def records(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        return {row.id: record_of(row) for row in self._rows(ids)}

    async def finished_claims(self, ids: Iterable[int]) -> dict[int, FinishedClaim]:
        return {
            row.id: FinishedClaim(row.id, row.finished_no, row.state, row.task.kind)
            for row in self._rows(ids)
            if row.finished_no is not None
        }

    def _rows(self, ids: Iterable[int]) -> Iterator[Row]:
        rows = self._session.tables.rows
        return (row for task_id in ids if (row := rows.get(task_id)) is not None)

    async def succeed(self, claims: Mapping[int, int], results: Mapping[int, bytes | None]) -> list[SucceededTask]:
        """Builds no `LiveTask` records, because nearly every outcome comes here."""
        tables, now = self._session.tables, self._session.now
        succeeded: list[SucceededTask] = []
        for row in self._rows(claims):
            if row.state is RUNNING and row.claim_no == claims[row.id] and not row.cancel_requested:
                task = row.task
                succeeded.append(
                    SucceededTask(row.id, task.kind, task.queue, row.limit_key, task.group_id, row.has_dependents)
                )
                row.result = results.get(row.id)
                tables.end(row, State.SUCCEEDED, None, now)
                row.finished_no = row.claim_no
        return succeeded

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
        leaves_key_queue: bool = False,
        protected_for: int = 0,
        by_owner: bool = False,
    ) -> State:
        tables, now = self._session.tables, self._session.now
        row = tables.rows[task.id]
        if protected_for > 0:
            row.protected_until = max(row.protected_until, now + protected_for)
        if by_owner:
            row.finished_no = row.claim_no
        row.batch_id = None
        if limit_key is not None or leaves_key_queue:
            tables.assign_key(row, limit_key, now)
        else:
            tables.requeue(row, row.run_at if delay is None else now + delay, now)
        return row.state

    async def charge(
        self,
        task_id: int,
        *,
        attempts: int = 0,
        crashes: int = 0,
        errors: Sequence[ErrorRecord] | None = None,
        ended_attempts: Sequence[AttemptRecord] | None = None,
    ) -> None:
        row = self._session.tables.rows[task_id]
        row.attempts = max(row.attempts - attempts, 0)
        row.crashes += crashes
        if errors is not None:
            row.errors = tuple(errors)
        if ended_attempts is not None:
            row.ended_attempts = tuple(ended_attempts)

    async def set_server_failures(self, task_id: int, server_failures: int) -> None:
        self._session.tables.rows[task_id].server_failures = server_failures

    async def set_owner_deaths(self, task_id: int, owner_deaths: int) -> None:
        self._session.tables.rows[task_id].owner_deaths = owner_deaths

    async def set_errors(self, task_id: int, errors: Sequence[ErrorRecord]) -> None:
        self._session.tables.rows[task_id].errors = tuple(errors)

    async def set_ended_attempts(self, task_id: int, ended_attempts: Sequence[AttemptRecord]) -> None:
        self._session.tables.rows[task_id].ended_attempts = tuple(ended_attempts)

    async def set_requirements(self, task_id: int, requirements: str) -> None:
        self._session.tables.set_requirements(self._session.tables.rows[task_id], requirements)

    async def report(self, task_id: int, claim_no: int, progress: Progress | None, *, is_overdue: bool) -> bool:
        row = self._session.tables.rows.get(task_id)
        if row is None or row.claim_no != claim_no or row.state is not RUNNING:
            return False
        if progress is not None:
            row.progress = progress
        row.overdue = row.overdue or is_overdue
        return True

    async def request_cancel(self, task_id: int) -> None:
        self._session.tables.rows[task_id].cancel_requested = True

    async def extend_timeout(self, task_id: int, extra: int, at_most: int) -> None:
        row = self._session.tables.rows[task_id]
        row.extended_by = min((row.extended_by or 0) + extra, at_most)

    async def set_meta(self, task: LiveTask | FinalTask, meta: bytes) -> None:
        row = self._session.tables.rows[task.id]
        row.task = replace(row.task, meta=meta)

    async def delete(self, task_id: int) -> None:
        self._session.tables.remove(self._session.tables.rows[task_id])

    async def delete_final(self, task: FinalTask) -> None:
        self._session.tables.remove(self._session.tables.rows[task.id])

    async def prune(self, state: State, age: int, limit: int) -> int:
        tables, ended_before = self._session.tables, self._session.now - age
        # Rows are in the order of their ends, and the clock never runs back: the first young one ends the search.
        old = takewhile(lambda row: (row.finished_at or 0) < ended_before, tables.ended[state].values())
        return self._delete_old(
            islice((row for row in old if row.task.keep_for is None and self._can_be_pruned(row)), limit)
        )

    async def keeps(self) -> list[int]:
        return sorted(self._session.tables.by_keep_for)

    async def prune_by_keep_for(self, keep_for: int, limit: int) -> int:
        ended_before = self._session.now - keep_for
        of_age = self._session.tables.by_keep_for[keep_for].values()
        old = takewhile(lambda row: (row.finished_at or 0) < ended_before, of_age)
        return self._delete_old(islice((row for row in old if self._can_be_pruned(row)), limit))

    def _can_be_pruned(self, row: Row) -> bool:
        """Whether the task belongs to no group or flow, whose tasks are pruned together, and no live task needs it."""
        tables = self._session.tables
        dependents = (tables.rows[dependency.task_id] for dependency in tables.dependencies.on([row.id]))
        return row.task.group_id is None and all(dependent.state in FINAL for dependent in dependents)

    async def prune_groups(self, ids: Sequence[int]) -> int:
        """Delete the final tasks of these groups. Returns their number."""
        groups = self._session.tables.groups
        members = (row for group_id in ids for row in groups[group_id].members.values())
        return self._delete_old(sorted(members, key=attrgetter("ended_no")))

    def _delete_old(self, old: Iterable[Row]) -> int:
        """Delete the final tasks `old`, which are in the order of their ends. Returns their number."""
        tables, rows = self._session.tables, list(old)
        for row in rows:
            tables.pruned[row.state, row.task.kind] = max(
                row.ended_no, tables.pruned.get((row.state, row.task.kind), 0)
            )
            tables.remove(row)
        return len(rows)

    async def revive(self, tasks: Sequence[FinalTask]) -> dict[int, State]:
        tables, states = self._session.tables, dict[int, State]()
        for row in self._rows(sorted(task.id for task in tasks)):
            if tables.holder(row.task) is None:
                tables.revive(row, self._session.now)
                states[row.id] = row.state
        return states

    async def add(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        return list(map(self._add, tasks))

    async def add_keyed(self, task: NewTask) -> Insertion | None:
        assert task.key is not None
        if self._session.tables.holder(task) is not None:
            return None
        return None if await self._session.key_holds.held([(task.kind, task.key)]) else self._add(task)

    def _add(self, task: NewTask) -> Insertion:
        now = self._session.now
        row = self._session.tables.add(task, _due(task.run_at, task.delay, now), now)
        return Insertion(row.id, True, row.state)

    async def replace(self, holder: KeyHolder, task: NewTask) -> State:
        tables, now = self._session.tables, self._session.now
        row = tables.rows[holder.id]
        tables.replace(row, task, _due(task.run_at, task.delay, now), now)
        return row.state

    async def key_holder(self, kind: str, key: str) -> KeyHolder | None:
        row = self._session.tables.holders.get((kind, key))
        return None if row is None else _holder(row)

    async def key_holders(self, names: Collection[KeyName]) -> dict[KeyName, KeyHolder]:
        holders = self._session.tables.holders
        return {name: _holder(holders[name]) for name in names if name in holders}

    async def reschedule(self, task_id: int, run_at: int | None, delay: int | None) -> ChangedTask | None:
        tables, now = self._session.tables, self._session.now
        row = tables.rows.get(task_id)
        if row is None or row.state not in (State.SCHEDULED, State.READY) or row.is_dependent:
            return None
        row.release_reservation()
        tables.requeue(row, _due(run_at, delay, now), now)
        if row.state is State.SCHEDULED:
            tables.set_fair_tag(row, 0)
        return changed_task(row)

    async def set_priority(self, task_id: int, priority: int) -> ChangedTask | None:
        row = self._session.tables.rows.get(task_id)
        if row is None or row.state is RUNNING or row.state in FINAL or row.task.is_command:
            return None
        self._session.tables.reprioritize(row, priority)
        return changed_task(row)

    async def expired(self, limit: int) -> list[LiveTask]:
        return [_live(row) for row in self._session.tables.expiry.due(self._session.now, limit)]

    async def make_due_ready(self, limit: int) -> list[ChangedTask]:
        tables, now = self._session.tables, self._session.now
        due = tables.due.due(now, limit)
        for row in due:
            tables.requeue(row, row.run_at, now)
        return [changed_task(row) for row in due]

    async def next_due_in(self) -> int | None:
        tables, now = self._session.tables, self._session.now
        alarm = min(tables.batch_alarms.values(), default=None)
        awaited = (tables.due.next_moment(), tables.expiry.next_moment(), alarm, _next_backoff_end(tables, now))
        moments = [moment for moment in awaited if moment is not None]
        return max(min(moments) - now, 0) if moments else None

    async def orphans(self, dead: Collection[str], limit: int) -> list[LiveTask]:
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
        row.is_dependent,
        task.has_dependencies,
        row.has_dependents,
        row.attempts,
        row.crashes,
        row.owner_deaths,
        row.server_failures,
        task.requirements,
        row.errors,
        row.started_at,
        row.server,
        row.ended_attempts,
        row.batch_id,
    )


def _final(row: Row) -> FinalTask:
    task = row.task
    return FinalTask(
        row.id,
        task.kind,
        task.queue,
        row.state,
        task.key,
        row.limit_key,
        task.group_id,
        task.has_dependencies,
        row.has_dependents,
        task.requirements,
        row.reason,
        row.claim_no,
        row.attempts,
        row.node_id,
        row.server,
        row.started_at,
        row.finished_at or 0,
        row.ended_attempts,
        task.fair_key,
        task.overrides,
    )


def _holder(row: Row) -> KeyHolder:
    assert row.task.key is not None
    return KeyHolder(
        row.id, row.task.kind, row.task.key, row.state, row.limit_key, row.task.has_dependencies, row.has_dependents
    )


def _due(run_at: int | None, delay: int | None, now: int) -> int:
    return run_at if run_at is not None else now + (delay or 0)


def _next_backoff_end(tables: Tables, now: int) -> int | None:
    """When the next back-off of a server ends. None if no server backs off."""
    moments = (server.backs_off_until for provider in tables.providers.values() for server in provider.servers.values())
    return min((moment for moment in moments if moment is not None and moment > now), default=None)
