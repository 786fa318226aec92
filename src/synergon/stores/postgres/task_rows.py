"""Live tasks and the history in the PostgreSQL store: implements `stores.session.TaskRows` with the statements of
`sql/task_rows.sql` and `sql/operations.sql`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.record import Record, to_datetime
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.postgres import new_tasks
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ChangedTask, FinalTask, FinishedClaim, KeyHolder, KeyName, LiveTask
from synergon.stores.session import NO_RESULTS


class _PrunedTask(msgspec.Struct, frozen=True):
    queue: str
    kind: str
    ended_no: int
    """The position of the task in the order of final events."""


class TaskRows:
    """Implements `stores.session.TaskRows` for the PostgreSQL store. A read locks the rows, by ascending id, except in
    `records` and `finished_claims`."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def running(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """The running tasks with these ids."""
        return {task.id: task for task in await self._transaction.typed(LiveTask, "running_tasks", list(ids))}

    async def live(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """The live tasks with these ids."""
        return {task.id: task for task in await self._transaction.typed(LiveTask, "live_tasks", list(ids))}

    async def final(self, ids: Iterable[int]) -> dict[int, FinalTask]:
        """The tasks of the history with these ids."""
        return {task.id: task for task in await self._transaction.typed(FinalTask, "final_tasks", list(ids))}

    async def records(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        """The tasks with these ids, live or final, as the records that users get."""
        return {
            record.id: record
            for name in ("get_live", "get_final")
            for record in await self._transaction.typed(TaskRecord, name, list(ids))
        }

    async def finished_claims(self, ids: Iterable[int]) -> dict[int, FinishedClaim]:
        """The last finished claim of each of these tasks, live or final."""
        found = await self._transaction.typed(FinishedClaim, "finished_claims", list(ids))
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
        """Move live tasks to the history with these results. The numbers of final tasks are updated at the end of the
        transaction. `by_owner`: the node that claimed the tasks ends them."""
        transaction = self._transaction
        ids = sorted(task.id for task in tasks)
        texts = [_text(results.get(task_id)) for task_id in ids]
        await transaction.run("end", ids, texts, state, reason, by_owner)
        if not transaction.profile.changes_several_tables:
            await transaction.run("remove_ended", ids)
        for task in tasks:
            transaction.count(task.queue, task.kind, state, 1)

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
        return State(
            await self._transaction.value("release", task.id, delay, by_owner, limit_key, max(protected_for, 0))
        )

    async def charge(
        self, task_id: int, *, attempts: int = 0, crashes: int = 0, errors: Sequence[ErrorRecord] | None = None
    ) -> None:
        """Subtract attempts from a running task, add crashes, and replace its list of errors."""
        await self._transaction.run("charge", task_id, _json(errors), attempts, crashes)

    async def set_owner_deaths(self, task_id: int, owner_deaths: int) -> None:
        """Set how many owners of a running task have died."""
        await self._transaction.run("set_owner_deaths", task_id, owner_deaths)

    async def set_errors(self, task_id: int, errors: Sequence[ErrorRecord]) -> None:
        """Replace the list of errors of a live task."""
        await self._transaction.run("set_errors", task_id, _json(errors))

    async def set_requirements(self, task_id: int, requirements: str) -> None:
        """Replace the text of the requirements of a live task."""
        await self._transaction.run("set_requirements", task_id, requirements)

    async def report(self, task_id: int, claim_no: int, progress: Progress | None, *, is_overdue: bool) -> bool:
        """Write the progress and overdue mark of a running attempt. False if the claim is stale."""
        return await self._transaction.run("report", task_id, claim_no, _json(progress), is_overdue) == 1

    async def request_cancel(self, task_id: int) -> None:
        """Mark a running task, so that its node cancels the attempt."""
        await self._transaction.run("request_cancel", task_id)

    async def extend_timeout(self, task_id: int, extra: int, at_most: int) -> None:
        """Add microseconds to the timeout of a running task's attempt."""
        await self._transaction.run("extend_timeout", task_id, extra, at_most)

    async def set_meta(self, task: LiveTask | FinalTask, meta: bytes) -> None:
        """Replace the metadata of a task, live or final."""
        name = "set_live_meta" if isinstance(task, LiveTask) else "set_final_meta"
        await self._transaction.run(name, task.id, meta.decode())

    async def delete(self, task_id: int) -> None:
        """Delete a live task that is not running."""
        await self._transaction.run("delete_live", task_id)

    async def delete_final(self, task: FinalTask) -> None:
        """Delete a task from the history, and update the number of final tasks."""
        await self._transaction.run("delete_final", task.id)
        self._transaction.count(task.queue, task.kind, task.state, -1)

    async def prune(self, state: State, age: int, limit: int) -> int:
        """Delete at most `limit` tasks of the history that ended in this state more than `age` ago, oldest first, and
        store for readers of final events how far the history is pruned. Skips rows that other transactions have locked.
        Returns the number of deleted tasks."""
        transaction = self._transaction
        if state is State.SUCCEEDED:
            pruned = await transaction.typed(_PrunedTask, "prune_succeeded", age, limit)
        else:
            pruned = await transaction.typed(_PrunedTask, "prune", state, age, limit)
        last: dict[str, int] = {}
        for task in pruned:
            transaction.count(task.queue, task.kind, state, -1)
            last[task.kind] = max(task.ended_no, last.get(task.kind, task.ended_no))
        if last:
            kinds = sorted(last)  # the order in which all transactions lock these rows
            await transaction.run("note_pruned", state, kinds, [last[kind] for kind in kinds])
        return len(pruned)

    async def revive(self, task: FinalTask) -> State | None:
        """Move a task of the history back to the live tasks. Returns the new state; None if a live task holds the key
        of the task."""
        state: str | None = await self._transaction.value("revive", task.id)
        if state is None:
            return None
        await self.delete_final(task)
        return State(state)

    async def add(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks without keys, with one statement."""
        return await new_tasks.add(self._transaction, tasks)

    async def add_keyed(self, task: NewTask) -> Insertion | None:
        """Insert a task with a key. None if a live task holds the key."""
        return await new_tasks.add_keyed(self._transaction, task)

    async def replace(self, holder: KeyHolder, task: NewTask) -> State:
        """Write a new task into the row of a live task that does not run. Returns the new state."""
        return await new_tasks.replace(self._transaction, holder.id, task)

    async def key_holder(self, kind: str, key: str) -> KeyHolder | None:
        """The live task of the kind that holds the key. None if there is none."""
        found = await self._transaction.typed(KeyHolder, "key_holder", kind, key)
        return found[0] if found else None

    async def key_holders(self, names: Collection[KeyName]) -> dict[KeyName, KeyHolder]:
        """The live tasks that hold these keys. A key that no live task holds is missing."""
        kinds, keys = zip(*names, strict=True) if names else ((), ())
        found = await self._transaction.typed(KeyHolder, "key_holders", list(kinds), list(keys))
        return {(holder.kind, holder.key): holder for holder in found}

    async def reschedule(self, task_id: int, run_at: int | None, delay: int | None) -> ChangedTask | None:
        """Change when a scheduled or ready task is due. None if it is in another state."""
        moment = None if run_at is None else to_datetime(run_at)
        changed = await self._transaction.typed(ChangedTask, "reschedule", task_id, moment, delay)
        return changed[0] if changed else None

    async def set_priority(self, task_id: int, priority: int) -> ChangedTask | None:
        """Change the priority of a task that is live, not running and not a command. None for any other task."""
        changed = await self._transaction.typed(ChangedTask, "set_priority", task_id, priority)
        return changed[0] if changed else None

    async def expired(self, limit: int) -> list[LiveTask]:
        """Expired tasks that are not ended yet, earliest expiry first. The caller ends all of them."""
        return await self._transaction.typed(LiveTask, "expired", limit)

    async def make_due_ready(self, limit: int) -> list[ChangedTask]:
        """Move due tasks from `scheduled` to `waiting` (if they have a limit key) or `ready`."""
        return await self._transaction.typed(ChangedTask, "make_due_ready", limit)

    async def next_due_in(self) -> int | None:
        """Microseconds until the next task is due or expires, or a server's back-off ends. None if there is no such
        moment."""
        next_in: int | None = await self._transaction.value("next_due_in")
        return None if next_in is None else max(next_in, 0)

    async def orphans(self, dead: Collection[str], limit: int) -> list[LiveTask]:
        """Running tasks of these nodes, and of nodes that are not registered, by ascending id."""
        return await self._transaction.typed(LiveTask, "orphans", list(dead), limit)


def _text(result: bytes | None) -> str | None:
    return None if result is None else result.decode()


def _json(value: Record | Sequence[Record] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
