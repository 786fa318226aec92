"""Live tasks and the history in the SQLite store: implements `stores.task_primitives.TaskRows` with the statements of
`sql/task_rows.sql`, `sql/tasks.sql` and `sql/operations.sql`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from synergon.model.attempts import AttemptRecord
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.stores import task_primitives as port
from synergon.stores.columns import GIVEN, REPLACED, Form, form_of
from synergon.stores.rows import ChangedTask, FinalTask, FinishedClaim, KeyHolder, KeyName, LiveTask
from synergon.stores.sqlite.transaction import Transaction, as_json
from synergon.stores.task_primitives import NO_RESULTS

READY: Final = State.READY  # every insert uses it, and a constant is read faster than a member

_encode: Final = msgspec.json.encode
_VALUES: Final = tuple((GIVEN[form].shared.values, GIVEN[form].own.values) for form in Form)


class _OldTask(msgspec.Struct, frozen=True):
    id: int
    queue: str
    kind: str
    state: State
    finished_at: int


class TaskRows(port.TaskRows):
    """Implements `stores.task_primitives.TaskRows` for the SQLite store. Needs no locks, because SQLite has one writer
    at a time."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def running(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        return {task.id: task for task in self._transaction.typed(LiveTask, "running_tasks", as_json(ids))}

    async def live(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        return {task.id: task for task in self._transaction.typed(LiveTask, "live_tasks", as_json(ids))}

    async def final(self, ids: Iterable[int]) -> dict[int, FinalTask]:
        return {task.id: task for task in self._transaction.typed(FinalTask, "final_tasks", as_json(ids))}

    async def records(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        wanted = as_json(ids)
        return {
            record.id: record
            for table in ("get_live", "get_final")
            for record in self._transaction.typed(TaskRecord, table, wanted)
        }

    async def finished_claims(self, ids: Iterable[int]) -> dict[int, FinishedClaim]:
        found = self._transaction.typed(FinishedClaim, "finished_claims", ids=as_json(ids))
        return {claim.id: claim for claim in found}

    async def end(
        self,
        tasks: Sequence[LiveTask],
        state: State,
        reason: Reason | None,
        *,
        results: Mapping[int, bytes | None] = NO_RESULTS,
        by_owner: bool = False,
    ) -> None:
        """Move live tasks to the history with these results, and update the numbers of final tasks. `by_owner`: the
        node that claimed the tasks ends them. Runs two statements for all tasks, and one for each queue and kind,
        because starting a statement costs more than its rows."""
        transaction = self._transaction
        ended = [(task.id, _text(results.get(task.id))) for task in tasks]
        transaction.run("end", state.value, reason, by_owner, transaction.now, as_json(ended))
        transaction.run("delete_live", as_json(task.id for task in tasks))
        for (queue, kind), count in Counter((task.queue, task.kind) for task in tasks).items():
            transaction.run("tally", queue, kind, state.value, count)

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
        now = self._transaction.now
        if delay is not None and delay > 0:
            state = State.SCHEDULED
        else:
            is_keyed = limit_key is not None or (task.limit_key is not None and not leaves_key_queue)
            state = State.WAITING if is_keyed else State.READY
        self._transaction.run(
            "release",
            id=task.id,
            state=state.value,
            run_at=None if delay is None else now + delay,
            limit_key=limit_key,
            leaves_key_queue=leaves_key_queue,
            protected_until=now + protected_for if protected_for > 0 else None,
            by_owner=by_owner,
        )
        return state

    async def charge(
        self,
        task_id: int,
        *,
        attempts: int = 0,
        crashes: int = 0,
        errors: Sequence[ErrorRecord] | None = None,
        ended_attempts: Sequence[AttemptRecord] | None = None,
    ) -> None:
        self._transaction.run(
            "charge",
            attempts,
            crashes,
            None if errors is None else _encode(errors),
            None if ended_attempts is None else _encode(ended_attempts),
            task_id,
        )

    async def set_server_failures(self, task_id: int, server_failures: int) -> None:
        self._transaction.run("set_server_failures", server_failures, task_id)

    async def set_owner_deaths(self, task_id: int, owner_deaths: int) -> None:
        self._transaction.run("set_owner_deaths", owner_deaths, task_id)

    async def set_errors(self, task_id: int, errors: Sequence[ErrorRecord]) -> None:
        self._transaction.run("set_errors", _encode(errors), task_id)

    async def set_ended_attempts(self, task_id: int, ended_attempts: Sequence[AttemptRecord]) -> None:
        self._transaction.run("set_ended_attempts", _encode(ended_attempts), task_id)

    async def set_requirements(self, task_id: int, requirements: str) -> None:
        self._transaction.run("set_requirements", requirements, task_id)

    async def report(self, task_id: int, claim_no: int, progress: Progress | None, *, is_overdue: bool) -> bool:
        encoded = None if progress is None else _encode(progress)
        return self._transaction.run("report", encoded, is_overdue, task_id, claim_no) == 1

    async def request_cancel(self, task_id: int) -> None:
        self._transaction.run("request_cancel", task_id)

    async def extend_timeout(self, task_id: int, extra: int, at_most: int) -> None:
        self._transaction.run("extend_timeout", extra, at_most, task_id)

    async def set_meta(self, task: LiveTask | FinalTask, meta: bytes) -> None:
        self._transaction.run("set_live_meta" if isinstance(task, LiveTask) else "set_final_meta", meta, task.id)

    async def delete(self, task_id: int) -> None:
        self._transaction.run("delete_live", as_json([task_id]))

    async def delete_final(self, task: FinalTask) -> None:
        self._transaction.run("delete_final", as_json([task.id]))
        self._transaction.run("untally", 1, task.queue, task.kind, task.state.value)

    async def prune(self, state: State, age: int, limit: int) -> int:
        transaction = self._transaction
        old = transaction.typed(_OldTask, "old_tasks", state.value, transaction.now - age, limit)
        self._delete_old(old)
        return len(old)

    async def keeps(self) -> list[int]:
        return self._transaction.ids("keeps")

    async def prune_kept(self, keep_for: int, limit: int) -> int:
        transaction = self._transaction
        old = transaction.typed(_OldTask, "old_kept_tasks", keep_for, transaction.now - keep_for, limit)
        self._delete_old(old)
        return len(old)

    async def prune_groups(self, ids: Sequence[int]) -> int:
        """Delete the final tasks of these groups. Returns their number."""
        old = self._transaction.typed(_OldTask, "tasks_of_groups", as_json(ids))
        self._delete_old(old)
        return len(old)

    def _delete_old(self, old: Sequence[_OldTask]) -> None:
        """Delete final tasks, which are in the order of their ends, with their dependencies."""
        transaction, ids = self._transaction, as_json(task.id for task in old)
        for (state, kind), moment in {(task.state, task.kind): task.finished_at for task in old}.items():  # the last
            transaction.run("note_pruned", state.value, kind, moment)
        transaction.run("delete_final", ids)
        transaction.run("delete_dependencies", ids)
        for (queue, kind, state), count in Counter((task.queue, task.kind, task.state) for task in old).items():
            transaction.run("untally", count, queue, kind, state.value)

    async def revive(self, tasks: Sequence[FinalTask]) -> dict[int, State]:
        transaction = self._transaction
        revived = transaction.typed(ChangedTask, "revive", transaction.now, as_json(task.id for task in tasks))
        states = {task.id: task.state for task in revived}
        transaction.run("delete_final", as_json(states))
        found = Counter((task.queue, task.kind, task.state) for task in tasks if task.id in states)
        for (queue, kind, state), count in found.items():
            transaction.run("untally", count, queue, kind, state.value)
        return states

    async def add(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks without keys. The rows are written before the next statement, or at the end of the
        transaction."""
        return [self._add(task) for task in tasks]

    async def add_keyed(self, task: NewTask) -> Insertion | None:
        transaction = self._transaction
        if transaction.row("key_holder", task.kind, task.key) is not None:
            return None
        if transaction.row("key_hold", task.kind, task.key, transaction.now) is not None:
            return None
        return self._add(task)

    def _add(self, task: NewTask) -> Insertion:
        task_id, now = self._transaction.next_id(), self._transaction.now
        due = _due(task, now)
        state = _first_state(task, due, now)
        form = form_of(task)
        shared, own = _VALUES[form]
        computed: tuple[Any, ...] = (str(state), now)  # anything but plain text takes a detour into the database
        if form is not Form.BARE:
            computed += (_expires_at(task, now), _tags(task))
        self._transaction.add_task(form, (*computed, *shared(task)), (task_id, due, *own(task)), task.queue)
        return Insertion(task_id, True, state)

    async def replace(self, holder: KeyHolder, task: NewTask) -> State:
        now = self._transaction.now
        due = _due(task, now)
        state = _first_state(task, due, now)
        self._transaction.run("add_queue", task.queue)
        self._transaction.run(
            "replace",
            **dict(zip(REPLACED.names, REPLACED.values(task), strict=True)),
            id=holder.id,
            state=str(state),
            now=now,
            due=due,
            expires_at=_expires_at(task, now),
            tags=_tags(task),
        )
        return state

    async def key_holder(self, kind: str, key: str) -> KeyHolder | None:
        found = self._transaction.typed(KeyHolder, "key_holder", kind, key)
        return found[0] if found else None

    async def key_holders(self, names: Collection[KeyName]) -> dict[KeyName, KeyHolder]:
        found = self._transaction.typed(KeyHolder, "key_holders", as_json(names))
        return {(holder.kind, holder.key): holder for holder in found}

    async def reschedule(self, task_id: int, run_at: int | None, delay: int | None) -> ChangedTask | None:
        now = self._transaction.now
        due = run_at if run_at is not None else now + (delay or 0)
        changed = self._transaction.typed(ChangedTask, "reschedule", due=due, now=now, id=task_id)
        return changed[0] if changed else None

    async def set_priority(self, task_id: int, priority: int) -> ChangedTask | None:
        changed = self._transaction.typed(ChangedTask, "set_priority", priority=priority, id=task_id)
        return changed[0] if changed else None

    async def expired(self, limit: int) -> list[LiveTask]:
        return self._transaction.typed(LiveTask, "expired", self._transaction.now, limit)

    async def make_due_ready(self, limit: int) -> list[ChangedTask]:
        return self._transaction.typed(ChangedTask, "make_due_ready", self._transaction.now, limit)

    async def next_due_in(self) -> int | None:
        now = self._transaction.now
        (moment,) = self._transaction.row("next_due", now)
        return None if moment is None else max(moment - now, 0)

    async def orphans(self, dead: Collection[str], limit: int) -> list[LiveTask]:
        return self._transaction.typed(LiveTask, "orphans", as_json(dead), limit)


def _text(result: bytes | None) -> str | None:
    return None if result is None else result.decode()


def _first_state(task: NewTask, due: int, now: int) -> State:
    if task.is_dependent:
        return State.WAITING
    if due > now:
        return State.SCHEDULED
    return READY if task.limit_key is None else State.WAITING


def _due(task: NewTask, now: int) -> int:
    if task.run_at is not None:
        return task.run_at
    return now + task.delay if task.delay is not None else now


def _expires_at(task: NewTask, now: int) -> int | None:
    return now + task.expires_in if task.expires_in is not None else None


def _tags(task: NewTask) -> str | None:
    return _encode(task.tags).decode() if task.tags else None
