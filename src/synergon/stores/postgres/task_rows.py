"""Live tasks and the history in the PostgreSQL store: moves and deletes tasks in one statement. Updates the counts of
final tasks at the end of the transaction, because other transactions wait for their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.postgres import new_tasks
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import FinalTask, KeyHolder, LiveTask, SucceededTask
from synergon.stores.sql_rows.task_rows import TaskRows as SqlTaskRows
from synergon.stores.task_primitives import NO_RESULTS


class _PrunedTask(msgspec.Struct, frozen=True):
    id: int
    queue: str
    kind: str
    state: State
    has_dependencies: bool
    ended_no: int
    """The position of the task in the order of final events."""


class TaskRows(SqlTaskRows):
    """Adapts `stores.sql_rows.task_rows` to the PostgreSQL store."""

    __slots__ = ()
    _sql: Transaction

    async def succeed(self, claims: Mapping[int, int], results: Mapping[int, bytes | None]) -> list[SucceededTask]:
        """Runs one statement, and does not read and lock the rows first. With the distributed profile, it does."""
        transaction = self._sql
        if not transaction.profile.changes_several_tables:
            return await super().succeed(claims, results)
        ids = sorted(claims)
        numbers, texts = [claims[task_id] for task_id in ids], [_text(results.get(task_id)) for task_id in ids]
        tasks = await transaction.typed(SucceededTask, "succeed_together", ids, numbers, texts)
        for task in tasks:
            transaction.count(task.queue, task.kind, State.SUCCEEDED, 1)
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
        """Move live tasks to the history with these results. The numbers of final tasks are updated at the end of the
        transaction. `by_owner`: the node that claimed the tasks ends them."""
        transaction = self._sql
        ids = sorted(task.id for task in tasks)
        texts = [_text(results.get(task_id)) for task_id in ids]
        await transaction.run("end", ids, texts, state, reason, by_owner)
        if not transaction.profile.changes_several_tables:
            await transaction.run("remove_ended", ids)
        for task in tasks:
            transaction.count(task.queue, task.kind, state, 1)

    async def delete(self, task_id: int) -> None:
        await self._sql.run("delete_live", task_id)

    async def delete_final(self, task: FinalTask) -> None:
        await self._sql.run("delete_final", [task.id])
        self._sql.count(task.queue, task.kind, task.state, -1)

    async def prune(self, state: State, age: int, limit: int) -> int:
        """Delete at most `limit` tasks of the history that ended in this state more than `age` ago, oldest first, and
        store for readers of final events how far the history is pruned. Skips rows that other transactions have locked.
        Returns the number of deleted tasks."""
        transaction = self._sql
        if state is State.SUCCEEDED:
            pruned = await transaction.typed(_PrunedTask, "prune_succeeded", age, limit)
        else:
            pruned = await transaction.typed(_PrunedTask, "prune", state, age, limit)
        await self._note_pruned(pruned)
        return len(pruned)

    async def prune_by_keep_for(self, keep_for: int, limit: int) -> int:
        pruned = await self._sql.typed(_PrunedTask, "prune_by_keep_for", keep_for, limit)
        await self._note_pruned(pruned)
        return len(pruned)

    async def prune_groups(self, ids: Sequence[int]) -> int:
        """Delete the final tasks of these groups. Returns their number."""
        pruned = await self._sql.typed(_PrunedTask, "prune_tasks_of_groups", list(ids))
        await self._note_pruned(pruned)
        return len(pruned)

    async def _note_pruned(self, pruned: Sequence[_PrunedTask]) -> None:
        """Count the deleted tasks, delete their dependencies, and store how far the history is pruned."""
        transaction = self._sql
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
        rows = await self._sql.rows("revive", sorted(task.id for task in tasks))
        states = {task_id: State(state) for task_id, state in rows}
        await self._sql.run("delete_final", sorted(states))
        for task in tasks:
            if task.id in states:
                self._sql.count(task.queue, task.kind, task.state, -1)
        return states

    async def add(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks without keys, with one statement."""
        return await new_tasks.add(self._sql, tasks)

    async def add_keyed(self, task: NewTask) -> Insertion | None:
        return await new_tasks.add_keyed(self._sql, task)

    async def replace(self, holder: KeyHolder, task: NewTask) -> State:
        return await new_tasks.replace(self._sql, holder.id, task)


def _text(result: bytes | None) -> str | None:
    return None if result is None else result.decode()
