"""Live tasks and the history in the SQLite store: inserts, ends and deletes tasks with as few statements as possible,
because starting a statement costs more than its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.columns import GIVEN, REPLACED, Form, form_of
from synergon.stores.rows import ChangedTask, FinalTask, KeyHolder, LiveTask, SucceededTask
from synergon.stores.sql_rows.task_rows import TaskRows as SqlTaskRows
from synergon.stores.sqlite.transaction import Statements, Transaction, as_json
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


class TaskRows(SqlTaskRows):
    """Adapts `stores.sql_rows.task_rows` to the SQLite store. Needs no locks, because SQLite has one writer at a
    time."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._sql = Statements(transaction)

    async def records(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        """Runs the statements directly, because it is called for every awaited result."""
        wanted = {"1": as_json(ids)}
        return {
            record.id: record
            for table in ("get_live", "get_final")
            for record in self._transaction.typed(TaskRecord, table, **wanted)
        }

    async def succeed(self, claims: Mapping[int, int], results: Mapping[int, bytes | None]) -> list[SucceededTask]:
        """Does not read the rows first, because that costs as much as moving them."""
        transaction = self._transaction
        ended = [(task_id, claim_no, _text(results.get(task_id))) for task_id, claim_no in claims.items()]
        tasks = transaction.typed(SucceededTask, "succeed", transaction.now, as_json(ended))
        self._note_ended(tasks, State.SUCCEEDED)
        return tasks

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
        self._note_ended(tasks, state)

    def _note_ended(self, tasks: Sequence[LiveTask | SucceededTask], state: State) -> None:
        """Delete the live rows of tasks that were copied to the history, and count the tasks."""
        self._transaction.run("delete_live", as_json(task.id for task in tasks))
        for (queue, kind), count in Counter((task.queue, task.kind) for task in tasks).items():
            self._transaction.run("tally", queue, kind, state.value, count)

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

    async def prune_by_keep_for(self, keep_for: int, limit: int) -> int:
        transaction = self._transaction
        old = transaction.typed(_OldTask, "old_tasks_by_keep_for", keep_for, transaction.now - keep_for, limit)
        self._delete_old(old)
        return len(old)

    async def prune_groups(self, ids: Sequence[int]) -> int:
        """Delete the final tasks of these groups. Returns their number."""
        old = self._transaction.typed(_OldTask, "tasks_of_groups", as_json(ids))
        self._delete_old(old)
        return len(old)

    def _delete_old(self, old: Sequence[_OldTask]) -> None:
        """Delete the final tasks `old`, which are in the order of their ends, and their dependencies."""
        transaction, ids = self._transaction, as_json(task.id for task in old)
        for (state, kind), moment in {(task.state, task.kind): task.finished_at for task in old}.items():  # the last
            transaction.run("note_pruned", state.value, kind, moment)
        transaction.run("delete_final", ids)
        transaction.run("delete_dependencies", **{"1": ids})
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
        if transaction.row("key_holder", **{"1": task.kind, "2": task.key}) is not None:
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
