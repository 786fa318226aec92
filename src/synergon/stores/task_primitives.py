"""The primitives of a session for tasks, and for what connects them: unique keys, dependencies, groups and flows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from synergon.model.attempts import AttemptRecord
from synergon.model.flows import FlowQuery
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.rows import (
    ChangedTask,
    DependencyRow,
    FinalTask,
    FinishedClaim,
    GroupCount,
    GroupRow,
    KeyHold,
    KeyHolder,
    KeyName,
    LiveTask,
    NeededTask,
    SucceededTask,
)

NO_RESULTS: Final[Mapping[int, bytes | None]] = MappingProxyType({})


class TaskRows(Protocol):
    """The rows of live tasks and of the history. Until this transaction ends, no other transaction changes the rows
    that these methods have read."""

    __slots__ = ()

    async def running(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """The running tasks with these ids."""

    async def live(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """The live tasks with these ids."""

    async def final(self, ids: Iterable[int]) -> dict[int, FinalTask]:
        """The tasks of the history with these ids."""

    async def records(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        """The tasks with these ids, live or final, as the records that users get."""

    async def finished_claims(self, ids: Iterable[int]) -> dict[int, FinishedClaim]:
        """The last finished claim of each of these tasks, live or final."""

    async def succeed(self, claims: Mapping[int, int], results: Mapping[int, bytes | None]) -> list[SucceededTask]:
        """Move the running tasks with these claim numbers to the history, as `succeeded` with these results, and update
        the numbers of final tasks. Leaves out tasks for which a cancel was requested. Returns the moved tasks."""
        running = (await self.running(claims)).values()
        tasks = [task for task in running if task.claim_no == claims[task.id] and not task.cancel_requested]
        if tasks:
            await self.end(tasks, State.SUCCEEDED, None, results=results, by_owner=True)
        return [
            SucceededTask(task.id, task.kind, task.queue, task.limit_key, task.group_id, task.has_dependents)
            for task in tasks
        ]

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
        node that claimed the tasks ends them."""

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
        """Move a running task to `scheduled` (with a delay), `waiting` (if it has or gets a limit key) or `ready`, and
        release its permits. `limit_key` assigns the task to another key queue; `leaves_key_queue` removes its limit
        key; `protected_for` protects it from preemption for that many microseconds; `by_owner`: the node that claimed
        the task releases it. Returns the new state."""

    async def charge(
        self,
        task_id: int,
        *,
        attempts: int = 0,
        crashes: int = 0,
        errors: Sequence[ErrorRecord] | None = None,
        ended_attempts: Sequence[AttemptRecord] | None = None,
    ) -> None:
        """Subtract attempts from a running task, add crashes, and replace its lists of errors and of ended attempts.
        None leaves a list as it is."""

    async def set_server_failures(self, task_id: int, server_failures: int) -> None:
        """Set how often a running task has blamed its server."""

    async def set_owner_deaths(self, task_id: int, owner_deaths: int) -> None:
        """Set how many owners of a running task have died."""

    async def set_errors(self, task_id: int, errors: Sequence[ErrorRecord]) -> None:
        """Replace the list of errors of a live task."""

    async def set_ended_attempts(self, task_id: int, ended_attempts: Sequence[AttemptRecord]) -> None:
        """Replace the list of ended attempts of a live task."""

    async def set_requirements(self, task_id: int, requirements: str) -> None:
        """Replace the text of the requirements of a live task."""

    async def report(self, task_id: int, claim_no: int, progress: Progress | None, *, is_overdue: bool) -> bool:
        """Write the progress and overdue mark of a running attempt. False if the claim is stale."""

    async def request_cancel(self, task_id: int) -> None:
        """Mark a running task, so that its node cancels the attempt."""

    async def extend_timeout(self, task_id: int, extra: int, at_most: int) -> None:
        """Add microseconds to the timeout of a running task's attempt, up to a total of `at_most`."""

    async def set_meta(self, task: LiveTask | FinalTask, meta: bytes) -> None:
        """Replace the metadata of a task, live or final."""

    async def delete(self, task_id: int) -> None:
        """Delete a live task that is not running."""

    async def delete_final(self, task: FinalTask) -> None:
        """Delete a task from the history, and update the number of final tasks."""

    async def prune(self, state: State, age: int, limit: int) -> int:
        """Delete at most `limit` tasks of the history that ended in this state more than `age` ago and have no
        `keep_for`, oldest first, and store for readers of final events how far the history is pruned. Keeps tasks of
        groups and flows, and tasks that a live one depends on. Returns the number of deleted tasks."""

    async def keeps(self) -> list[int]:
        """The different values of `keep_for` in the history."""

    async def prune_by_keep_for(self, keep_for: int, limit: int) -> int:
        """`prune` for tasks with this `keep_for`, in any final state. `prune` does not delete them."""

    async def prune_groups(self, ids: Sequence[int]) -> int:
        """Delete the final tasks of these groups and flows, as `prune` does. Returns their number."""

    async def revive(self, tasks: Sequence[FinalTask]) -> dict[int, State]:
        """Move tasks of the history back to the live tasks, due now, with attempts and result cleared. Returns the new
        states, by id. A task whose key a live task holds, or an earlier one of the list, is not changed."""

    async def add(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks without keys, with ascending ids. The state of a task is `waiting` if it waits for dependencies,
        else `scheduled` if it is due later, else `waiting` if it has a limit key, else `ready`."""

    async def add_keyed(self, task: NewTask) -> Insertion | None:
        """Insert a task with a key, as `add` does. None if a live task holds the key, or a hold of it has not
        expired."""

    async def replace(self, holder: KeyHolder, task: NewTask) -> State:
        """Write a new task into the row of a live task that does not run; id, key and group remain. Returns the state,
        which is chosen as in `add`."""

    async def key_holder(self, kind: str, key: str) -> KeyHolder | None:
        """The live task of the kind that holds the key. None if there is none."""

    async def key_holders(self, names: Collection[KeyName]) -> dict[KeyName, KeyHolder]:
        """The live tasks that hold these keys. A key that no live task holds is missing."""

    async def reschedule(self, task_id: int, run_at: int | None, delay: int | None) -> ChangedTask | None:
        """Change when a scheduled or ready task is due. None if it is in another state."""

    async def set_priority(self, task_id: int, priority: int) -> ChangedTask | None:
        """Change the priority of a task that is live, not running and not a command. None for any other task."""

    async def expired(self, limit: int) -> list[LiveTask]:
        """Expired tasks that are not ended yet, earliest expiry first. The caller ends all of them."""

    async def make_due_ready(self, limit: int) -> list[ChangedTask]:
        """Move due tasks from `scheduled` to `waiting` (if they have a limit key) or `ready`."""

    async def next_due_in(self) -> int | None:
        """Microseconds until the next task is due or expires, the next batch is due, or a server's back-off ends. None
        if there is no such moment."""

    async def orphans(self, dead: Collection[str], limit: int) -> list[LiveTask]:
        """Running tasks of these nodes, and of nodes that are not registered, by ascending id."""


class KeyHoldRows(Protocol):
    """The holds of unique keys: which keys stay taken, and until when. An expired hold has no effect."""

    __slots__ = ()

    async def held(self, names: Collection[KeyName]) -> dict[KeyName, KeyHold]:
        """The holds of these keys, without expired ones."""

    async def take(self, kind: str, key: str, task_id: int, duration: int) -> bool:
        """Hold a key for a task, for `duration` microseconds from now. False, without a change, if another task holds
        the key. No other transaction can take the key until this one ends."""

    async def is_free(self, kind: str, key: str, task_id: int) -> bool:
        """Whether no other task holds the key. Called after the task with this id was inserted with the key. From then
        on no other transaction can take the key, but another one may have taken it between the check and the insert."""

    async def release(self, task_id: int) -> None:
        """Delete the hold of a task. The caller deletes the task next."""

    async def prune(self, limit: int) -> None:
        """Delete at most `limit` expired holds."""


class DependencyRows(Protocol):
    """The dependencies between tasks."""

    __slots__ = ()

    async def add(self, rows: Sequence[DependencyRow]) -> None:
        """Insert dependencies."""

    async def lock_needed(self, ids: Collection[int]) -> dict[int, State]:
        """Lock these tasks, by ascending id, so that none of them ends before this transaction does, and read their
        states. A task that does not exist is missing. A caller's transaction only reads."""

    async def mark_needed(self, ids: Collection[int]) -> None:
        """Note in the rows of these live tasks that other tasks depend on them."""

    async def of(self, ids: Collection[int]) -> list[DependencyRow]:
        """The dependencies of these tasks, in the order of tasks, positions and items."""

    async def on(self, ids: Collection[int]) -> list[DependencyRow]:
        """The dependencies on these tasks."""

    async def open_on(self, ids: Collection[int]) -> list[DependencyRow]:
        """The open dependencies on these tasks."""

    async def lock_dependents(self, ids: Collection[int], others: Collection[int]) -> list[int]:
        """Lock the live tasks with open dependencies on the tasks `ids`, and the tasks `others`, by ascending id.
        Returns the ids of the locked tasks."""

    async def doomed(self, ids: Collection[int]) -> list[int]:
        """These tasks, and all tasks that must be cancelled because of them, directly or through other tasks. Their
        rows are not locked."""

    async def cancelled_with(self, ids: Collection[int]) -> list[int]:
        """These tasks, and all tasks that were cancelled because of them, directly or through other tasks."""

    async def close(self, ended: Mapping[int, str]) -> None:
        """Close the open dependencies on these tasks. `ended` has the id of each task and how it ended."""

    async def reopen(self, rows: Sequence[DependencyRow]) -> None:
        """Open these dependencies."""

    async def release(self, ids: Sequence[int]) -> list[ChangedTask]:
        """Move the tasks of this list that wait for dependencies, but have no open one, to `scheduled`, `waiting` or
        `ready`, by due time and limit key."""

    async def make_dependent(self, ids: Collection[int]) -> list[ChangedTask]:
        """Let these live tasks wait for their dependencies, except running ones."""

    async def defer(self, ids: Collection[int]) -> None:
        """Move tasks that wait for dependencies to `scheduled`, so that a `wake` settles their dependencies."""

    async def unsettled(self, limit: int) -> list[int]:
        """The due tasks whose dependencies a `wake` must settle. Their rows are not locked."""

    async def read(self, ids: Collection[int], most_bytes: int) -> list[NeededTask]:
        """The dependencies of these tasks with the needed tasks, in the order of tasks, positions and items. The
        results that one task needs are left out if they have more than `most_bytes` together."""

    async def needed_by(self, task_id: int) -> int | None:
        """A live task that depends on this one. None if there is none."""

    async def delete_of(self, ids: Collection[int]) -> None:
        """Delete the dependencies of these tasks."""


class GroupRows(Protocol):
    """The rows of groups and flows."""

    __slots__ = ()

    async def add(self, name: str, is_flow: bool) -> int:
        """Insert a group or a flow. Returns its id."""

    async def set_then(self, group_id: int, task_id: int) -> None:
        """Store which task follows the group, or is the last step of the flow."""

    async def end_empty(self, ids: Iterable[int]) -> list[int]:
        """End the groups of this list that have no live task, with the state that their tasks give them: `failed` if
        one failed, else `cancelled` if one was cancelled, else `succeeded`. Returns the groups that had not ended
        before."""

    async def reopen_flows(self, ids: Iterable[int]) -> None:
        """Mark the flows among these groups as not ended."""

    async def live_tasks(self, group_id: int) -> list[int]:
        """The live tasks of a group."""

    async def final_tasks(self, group_id: int) -> list[int]:
        """The final tasks of a group or a flow that did not succeed."""

    async def flows(self, query: FlowQuery) -> list[int]:
        """The flows that match, newest first, one more than the limit if there are more."""

    async def read(self, ids: Sequence[int]) -> list[GroupRow]:
        """The rows of these groups."""

    async def counts(self, ids: Sequence[int]) -> list[GroupCount]:
        """How many tasks of these groups, live or final, are in each state."""

    async def old(self, state: State, age: int, limit: int) -> list[int]:
        """The groups and flows that ended in this state more than `age` ago, oldest first, except those with a live
        task, a live follower, or a task that a live one depends on."""

    async def delete(self, ids: Sequence[int]) -> None:
        """Delete groups and flows."""
