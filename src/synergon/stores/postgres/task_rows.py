"""Live tasks and the history in the PostgreSQL store: implements `stores.task_primitives.TaskRows` with the statements
of `sql/task_rows.sql` and `sql/operations.sql`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from synergon.model.attempts import AttemptRecord
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.record import Record, to_datetime
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.stores import task_primitives as port
from synergon.stores.postgres import new_tasks
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ChangedTask, FinalTask, FinishedClaim, KeyHolder, KeyName, LiveTask
from synergon.stores.task_primitives import NO_RESULTS


class _PrunedTask(msgspec.Struct, frozen=True):
    id: int
    queue: str
    kind: str
    state: State
    has_dependencies: bool
    ended_no: int
    """The position of the task in the order of final events."""


class TaskRows(port.TaskRows):
    """Implements `stores.task_primitives.TaskRows` for the PostgreSQL store. A read locks the rows, by ascending id,
    except in `records` and `finished_claims`."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def running(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        return {task.id: task for task in await self._transaction.typed(LiveTask, "running_tasks", list(ids))}

    async def live(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        return {task.id: task for task in await self._transaction.typed(LiveTask, "live_tasks", list(ids))}

    async def final(self, ids: Iterable[int]) -> dict[int, FinalTask]:
        return {task.id: task for task in await self._transaction.typed(FinalTask, "final_tasks", list(ids))}

    async def records(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        return {
            record.id: record
            for name in ("get_live", "get_final")
            for record in await self._transaction.typed(TaskRecord, name, list(ids))
        }

    async def finished_claims(self, ids: Iterable[int]) -> dict[int, FinishedClaim]:
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
        leaves_key_queue: bool = False,
        protected_for: int = 0,
        by_owner: bool = False,
    ) -> State:
        return State(
            await self._transaction.value(
                "release", task.id, delay, by_owner, limit_key, max(protected_for, 0), leaves_key_queue
            )
        )

    async def charge(
        self,
        task_id: int,
        *,
        attempts: int = 0,
        crashes: int = 0,
        errors: Sequence[ErrorRecord] | None = None,
        ended_attempts: Sequence[AttemptRecord] | None = None,
    ) -> None:
        await self._transaction.run("charge", task_id, _json(errors), attempts, crashes, _json(ended_attempts))

    async def set_server_failures(self, task_id: int, server_failures: int) -> None:
        await self._transaction.run("set_server_failures", task_id, server_failures)

    async def set_owner_deaths(self, task_id: int, owner_deaths: int) -> None:
        await self._transaction.run("set_owner_deaths", task_id, owner_deaths)

    async def set_errors(self, task_id: int, errors: Sequence[ErrorRecord]) -> None:
        await self._transaction.run("set_errors", task_id, _json(errors))

    async def set_ended_attempts(self, task_id: int, ended_attempts: Sequence[AttemptRecord]) -> None:
        await self._transaction.run("set_ended_attempts", task_id, _json(ended_attempts))

    async def set_requirements(self, task_id: int, requirements: str) -> None:
        await self._transaction.run("set_requirements", task_id, requirements)

    async def report(self, task_id: int, claim_no: int, progress: Progress | None, *, is_overdue: bool) -> bool:
        return await self._transaction.run("report", task_id, claim_no, _json(progress), is_overdue) == 1

    async def request_cancel(self, task_id: int) -> None:
        await self._transaction.run("request_cancel", task_id)

    async def extend_timeout(self, task_id: int, extra: int, at_most: int) -> None:
        await self._transaction.run("extend_timeout", task_id, extra, at_most)

    async def set_meta(self, task: LiveTask | FinalTask, meta: bytes) -> None:
        name = "set_live_meta" if isinstance(task, LiveTask) else "set_final_meta"
        await self._transaction.run(name, task.id, meta.decode())

    async def delete(self, task_id: int) -> None:
        await self._transaction.run("delete_live", task_id)

    async def delete_final(self, task: FinalTask) -> None:
        await self._transaction.run("delete_final", [task.id])
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
        await self._note_pruned(pruned)
        return len(pruned)

    async def keeps(self) -> list[int]:
        return await self._transaction.ids("keeps")

    async def prune_kept(self, keep_for: int, limit: int) -> int:
        pruned = await self._transaction.typed(_PrunedTask, "prune_kept", keep_for, limit)
        await self._note_pruned(pruned)
        return len(pruned)

    async def prune_groups(self, ids: Sequence[int]) -> int:
        """Delete the final tasks of these groups. Returns their number."""
        pruned = await self._transaction.typed(_PrunedTask, "prune_tasks_of_groups", list(ids))
        await self._note_pruned(pruned)
        return len(pruned)

    async def _note_pruned(self, pruned: Sequence[_PrunedTask]) -> None:
        """Count the deleted tasks, delete their dependencies, and store how far the history is pruned."""
        transaction = self._transaction
        last: dict[State, dict[str, int]] = {}
        for task in pruned:
            transaction.count(task.queue, task.kind, task.state, -1)
            of_state = last.setdefault(task.state, {})
            of_state[task.kind] = max(task.ended_no, of_state.get(task.kind, task.ended_no))
        for state, of_state in sorted(last.items()):
            kinds = sorted(of_state)  # the order in which all transactions lock these rows
            await transaction.run("note_pruned", [state] * len(kinds), kinds, [of_state[kind] for kind in kinds])
        dependent = [task.id for task in pruned if task.has_dependencies]
        if dependent:
            await transaction.run("delete_dependencies", dependent)

    async def revive(self, tasks: Sequence[FinalTask]) -> dict[int, State]:
        rows = await self._transaction.rows("revive", sorted(task.id for task in tasks))
        states = {task_id: State(state) for task_id, state in rows}
        await self._transaction.run("delete_final", sorted(states))
        for task in tasks:
            if task.id in states:
                self._transaction.count(task.queue, task.kind, task.state, -1)
        return states

    async def add(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks without keys, with one statement."""
        return await new_tasks.add(self._transaction, tasks)

    async def add_keyed(self, task: NewTask) -> Insertion | None:
        return await new_tasks.add_keyed(self._transaction, task)

    async def replace(self, holder: KeyHolder, task: NewTask) -> State:
        return await new_tasks.replace(self._transaction, holder.id, task)

    async def key_holder(self, kind: str, key: str) -> KeyHolder | None:
        found = await self._transaction.typed(KeyHolder, "key_holder", kind, key)
        return found[0] if found else None

    async def key_holders(self, names: Collection[KeyName]) -> dict[KeyName, KeyHolder]:
        kinds, keys = zip(*names, strict=True) if names else ((), ())
        found = await self._transaction.typed(KeyHolder, "key_holders", list(kinds), list(keys))
        return {(holder.kind, holder.key): holder for holder in found}

    async def reschedule(self, task_id: int, run_at: int | None, delay: int | None) -> ChangedTask | None:
        moment = None if run_at is None else to_datetime(run_at)
        changed = await self._transaction.typed(ChangedTask, "reschedule", task_id, moment, delay)
        return changed[0] if changed else None

    async def set_priority(self, task_id: int, priority: int) -> ChangedTask | None:
        changed = await self._transaction.typed(ChangedTask, "set_priority", task_id, priority)
        return changed[0] if changed else None

    async def expired(self, limit: int) -> list[LiveTask]:
        return await self._transaction.typed(LiveTask, "expired", limit)

    async def make_due_ready(self, limit: int) -> list[ChangedTask]:
        return await self._transaction.typed(ChangedTask, "make_due_ready", limit)

    async def next_due_in(self) -> int | None:
        next_in: int | None = await self._transaction.value("next_due_in")
        return None if next_in is None else max(next_in, 0)

    async def orphans(self, dead: Collection[str], limit: int) -> list[LiveTask]:
        return await self._transaction.typed(LiveTask, "orphans", list(dead), limit)


def _text(result: bytes | None) -> str | None:
    return None if result is None else result.decode()


def _json(value: Record | Sequence[Record] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
