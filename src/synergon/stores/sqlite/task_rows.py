"""Live tasks and the history in the SQLite store: implements `stores.session.TaskRows` with the statements of
`sql/task_rows.sql`, `sql/tasks.sql` and `sql/operations.sql`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.columns import GIVEN, REPLACED, Form, form_of
from synergon.stores.rows import ChangedTask, FinalTask, FinishedClaim, KeyHolder, KeyName, LiveTask
from synergon.stores.session import NO_RESULTS
from synergon.stores.sqlite.transaction import Transaction, as_json

READY: Final = State.READY  # every insert uses it, and a constant is read faster than a member

_encode: Final = msgspec.json.encode
_VALUES: Final = tuple((GIVEN[form].shared.values, GIVEN[form].own.values) for form in Form)


class _OldTask(msgspec.Struct, frozen=True):
    id: int
    queue: str
    kind: str
    finished_at: int


class TaskRows:
    """Implements `stores.session.TaskRows` for the SQLite store. Needs no locks, because SQLite has one writer at a
    time."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def running(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """The running tasks with these ids."""
        return {task.id: task for task in self._transaction.typed(LiveTask, "running_tasks", as_json(ids))}

    async def live(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """The live tasks with these ids."""
        return {task.id: task for task in self._transaction.typed(LiveTask, "live_tasks", as_json(ids))}

    async def final(self, ids: Iterable[int]) -> dict[int, FinalTask]:
        """The tasks of the history with these ids."""
        return {task.id: task for task in self._transaction.typed(FinalTask, "final_tasks", as_json(ids))}

    async def records(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        """The tasks with these ids, live or final, as the records that users get."""
        wanted = as_json(ids)
        return {
            record.id: record
            for table in ("get_live", "get_final")
            for record in self._transaction.typed(TaskRecord, table, wanted)
        }

    async def finished_claims(self, ids: Iterable[int]) -> dict[int, FinishedClaim]:
        """The last finished claim of each of these tasks, live or final."""
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
        protected_for: int = 0,
        by_owner: bool = False,
    ) -> State:
        """Move a running task to `scheduled` (with a delay), `waiting` (if it has or gets a limit key) or `ready`, and
        release its permits. `limit_key` assigns the task to another key queue; `protected_for` protects it from
        preemption for that many microseconds; `by_owner`: the node that claimed the task releases it. Returns the new
        state."""
        now = self._transaction.now
        if delay is not None and delay > 0:
            state = State.SCHEDULED
        else:
            state = State.READY if limit_key is None and task.limit_key is None else State.WAITING
        self._transaction.run(
            "release",
            id=task.id,
            state=state.value,
            run_at=None if delay is None else now + delay,
            limit_key=limit_key,
            protected_until=now + protected_for if protected_for > 0 else None,
            by_owner=by_owner,
        )
        return state

    async def charge(
        self, task_id: int, *, attempts: int = 0, crashes: int = 0, errors: Sequence[ErrorRecord] | None = None
    ) -> None:
        """Subtract attempts from a running task, add crashes, and replace its list of errors."""
        self._transaction.run("charge", attempts, crashes, None if errors is None else _encode(errors), task_id)

    async def set_owner_deaths(self, task_id: int, owner_deaths: int) -> None:
        """Set how many owners of a running task have died."""
        self._transaction.run("set_owner_deaths", owner_deaths, task_id)

    async def set_errors(self, task_id: int, errors: Sequence[ErrorRecord]) -> None:
        """Replace the list of errors of a live task."""
        self._transaction.run("set_errors", _encode(errors), task_id)

    async def set_requirements(self, task_id: int, requirements: str) -> None:
        """Replace the text of the requirements of a live task."""
        self._transaction.run("set_requirements", requirements, task_id)

    async def report(self, task_id: int, claim_no: int, progress: Progress | None, *, is_overdue: bool) -> bool:
        """Write the progress and overdue mark of a running attempt. False if the claim is stale."""
        encoded = None if progress is None else _encode(progress)
        return self._transaction.run("report", encoded, is_overdue, task_id, claim_no) == 1

    async def request_cancel(self, task_id: int) -> None:
        """Mark a running task, so that its node cancels the attempt."""
        self._transaction.run("request_cancel", task_id)

    async def extend_timeout(self, task_id: int, extra: int, at_most: int) -> None:
        """Add microseconds to the timeout of a running task's attempt."""
        self._transaction.run("extend_timeout", extra, at_most, task_id)

    async def set_meta(self, task: LiveTask | FinalTask, meta: bytes) -> None:
        """Replace the metadata of a task, live or final."""
        self._transaction.run("set_live_meta" if isinstance(task, LiveTask) else "set_final_meta", meta, task.id)

    async def delete(self, task_id: int) -> None:
        """Delete a live task that is not running."""
        self._transaction.run("delete_live", as_json([task_id]))

    async def delete_final(self, task: FinalTask) -> None:
        """Delete a task from the history, and update the number of final tasks."""
        self._transaction.run("delete_final", as_json([task.id]))
        self._transaction.run("untally", 1, task.queue, task.kind, task.state.value)

    async def prune(self, state: State, age: int, limit: int) -> int:
        """Delete at most `limit` tasks of the history that ended in this state more than `age` ago, oldest first, and
        store for readers of final events how far the history is pruned. Returns the number of deleted tasks."""
        transaction = self._transaction
        old = transaction.typed(_OldTask, "old_tasks", state.value, transaction.now - age, limit)
        for kind, moment in {task.kind: task.finished_at for task in old}.items():  # the last one of each kind
            transaction.run("note_pruned", state.value, kind, moment)
        transaction.run("delete_final", as_json(task.id for task in old))
        for (queue, kind), count in Counter((task.queue, task.kind) for task in old).items():
            transaction.run("untally", count, queue, kind, state.value)
        return len(old)

    async def revive(self, task: FinalTask) -> State | None:
        """Move a task of the history back to the live tasks. Returns the new state; None if a live task holds the key
        of the task."""
        revived = self._transaction.typed(ChangedTask, "revive", self._transaction.now, task.id)
        if not revived:
            return None
        await self.delete_final(task)
        return revived[0].state

    async def add(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks without keys. The rows are written before the next statement, or at the end of the
        transaction."""
        return [self._add(task) for task in tasks]

    async def add_keyed(self, task: NewTask) -> Insertion | None:
        """Insert a task with a key. None if a live task holds the key."""
        if self._transaction.row("key_holder", task.kind, task.key) is not None:
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
        """Write a new task into the row of a live task that does not run. Returns the new state."""
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
        """The live task of the kind that holds the key. None if there is none."""
        found = self._transaction.typed(KeyHolder, "key_holder", kind, key)
        return found[0] if found else None

    async def key_holders(self, names: Collection[KeyName]) -> dict[KeyName, KeyHolder]:
        """The live tasks that hold these keys. A key that no live task holds is missing."""
        found = self._transaction.typed(KeyHolder, "key_holders", as_json(names))
        return {(holder.kind, holder.key): holder for holder in found}

    async def reschedule(self, task_id: int, run_at: int | None, delay: int | None) -> ChangedTask | None:
        """Change when a scheduled or ready task is due. None if it is in another state."""
        now = self._transaction.now
        due = run_at if run_at is not None else now + (delay or 0)
        changed = self._transaction.typed(ChangedTask, "reschedule", due=due, now=now, id=task_id)
        return changed[0] if changed else None

    async def set_priority(self, task_id: int, priority: int) -> ChangedTask | None:
        """Change the priority of a task that is live, not running and not a command. None for any other task."""
        changed = self._transaction.typed(ChangedTask, "set_priority", priority, task_id)
        return changed[0] if changed else None

    async def expired(self, limit: int) -> list[LiveTask]:
        """Expired tasks that are not ended yet, earliest expiry first. The caller ends all of them."""
        return self._transaction.typed(LiveTask, "expired", self._transaction.now, limit)

    async def make_due_ready(self, limit: int) -> list[ChangedTask]:
        """Move due tasks from `scheduled` to `waiting` (if they have a limit key) or `ready`."""
        return self._transaction.typed(ChangedTask, "make_due_ready", self._transaction.now, limit)

    async def next_due_in(self) -> int | None:
        """Microseconds until the next task is due or expires, or a server's back-off ends. None if there is no such
        moment."""
        now = self._transaction.now
        (moment,) = self._transaction.row("next_due", now)
        return None if moment is None else max(moment - now, 0)

    async def orphans(self, dead: Collection[str], limit: int) -> list[LiveTask]:
        """Running tasks of these nodes, and of nodes that are not registered, by ascending id."""
        return self._transaction.typed(LiveTask, "orphans", as_json(dead), limit)


def _text(result: bytes | None) -> str | None:
    return None if result is None else result.decode()


def _first_state(task: NewTask, due: int, now: int) -> State:
    if task.after_group is not None:
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
