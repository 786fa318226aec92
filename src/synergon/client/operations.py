"""Reads and changes stored tasks for users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Unpack

import msgspec

from synergon.errors import IllegalMove, KeyConflict, OptionError, TaskError, TaskNotFound
from synergon.model.lifecycle import State
from synergon.model.record import is_storable, storable
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.task_records import TaskFilters, TaskPage, TaskQuery, TaskRecord
from synergon.model.tasks import Extension, MetaChange, Moved, Reprioritizing, Rescheduling
from synergon.options.durations import Duration, microseconds, seconds
from synergon.options.options import check_meta, check_moment, check_priority, reject_unknown
from synergon.policies import Retention, cutoffs_of

if TYPE_CHECKING:
    from synergon.client.announcer import Announcer
    from synergon.client.connection import Connection
    from synergon.explain.explanation import Explanation
    from synergon.model.nodes import NodeRecord
    from synergon.stores.base import Store

EXPLAIN_TRIES: Final = 3
"""How often an explanation is made at most, if the state of the task changes meanwhile. The last one is returned."""

PRUNED_AT_ONCE: Final = 1000
"""How many final tasks one transaction deletes at most."""


class Operations:
    """The part of an engine that reads and changes stored tasks. The store decides about each change, and the change is
    announced to the nodes."""

    def __init__(self, connection: Connection, announcer: Announcer) -> None:
        self._connection = connection
        self._announcer = announcer

    @property
    def _store(self) -> Store:
        return self._connection.store

    # ------------------------------------------------------------ reading

    async def get(self, task_id: int) -> TaskRecord:
        """One task, live or final. Raises TaskNotFound if there is none."""
        (record,) = await self._store.get([check_id(task_id)])
        if record is None:
            raise _not_found(task_id)
        return record

    async def explain(self, task_id: int) -> Explanation:
        """Explain why a task waits, how it runs, or how it ended."""
        from synergon.explain.explainer import explain  # imports the node, which a producer never needs

        record = await self.get(task_id)
        for _ in range(EXPLAIN_TRIES):
            explanation = await explain(self._store, self._connection.node, record)
            before, record = record, await self.get(task_id)
            if (before.state, before.claim_no) == (record.state, record.claim_no):
                break  # otherwise its state has changed meanwhile, and the explanation mixes two moments
        return explanation

    async def tasks(self, **filters: Unpack[TaskFilters]) -> TaskPage:
        """One page of the tasks that match, newest first."""
        reject_unknown(filters, TaskFilters.__annotations__, "tasks()")
        given: dict[str, Any] = dict(filters)
        limit, before = given.pop("limit", 100), given.pop("before", None)
        query = query_of(given)
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 10_000:
            raise OptionError(f"limit must be a whole number from 1 to 10000, got {limit!r}")
        if before is not None:
            before = check_id(before)
        return await self._store.list_tasks(msgspec.structs.replace(query, before=before, limit=limit))

    async def counts(self, *, kind: str | None = None, queue: str | None = None) -> dict[State, int]:
        """The exact number of tasks in each state, of this kind and queue, or of all."""
        totals = dict.fromkeys(State, 0)
        for (its_queue, its_kind, state), number in (await self._store.counts()).items():
            if kind in (None, its_kind) and queue in (None, its_queue):
                totals[state] += number
        return totals

    async def nodes(self) -> list[NodeRecord]:
        """All registered nodes, including dead ones that are not reaped yet. Producers are left out."""
        # Engines that only wait for results have rows too, with no slots.
        return [node for node in await self._store.nodes() if node.concurrency]

    # ------------------------------------------------------------ operations

    async def cancel(self, task_id: int, why: str | None = None) -> bool:
        """Cancel a task in any state. False if it had ended already. Raises TaskNotFound if there is none."""
        (moved,) = await self._store.cancel([check_id(task_id)], check_why(why))
        if moved.state is None:
            raise _not_found(task_id)
        self._announcer.announce_moves([moved])
        return moved.done

    async def cancel_group(self, group_id: int, why: str | None = None) -> int:
        """Cancel the live tasks of a group. Returns how many there were."""
        moves = await self._store.cancel_group(group_id, check_why(why))
        self._announcer.announce_moves(moves)
        return sum(moved.done for moved in moves)

    async def retry(self, task_id: int) -> None:
        """Run a final task again, under its id, with attempts and crashes reset. Raises KeyConflict if a live task
        holds its key, and IllegalMove if it is not final."""
        (moved,) = await self._store.retry([check_id(task_id)])
        if moved.key_holder is not None:
            raise KeyConflict(
                f"task {task_id} cannot be retried: task {moved.key_holder} is live and holds its key", moved.key_holder
            )
        self._check(moved, "retried", "only an ended task can be")
        self._announcer.announce_moves([moved])

    async def delete(self, task_id: int) -> None:
        """Delete a task that is not running, live or final. Raises IllegalMove if it runs."""
        (moved,) = await self._store.delete([check_id(task_id)])
        if not moved.done:
            self._check(moved, "deleted", "cancel it first")
        self._announcer.announce_moves([moved])

    async def reschedule(self, task_id: int, *, delay: Duration | None = None, run_at: datetime | None = None) -> None:
        """Change when a scheduled or ready task is due."""
        its_delay, moment = check_due(delay, run_at)
        change = Rescheduling(id=check_id(task_id), delay=its_delay, run_at=moment)
        (moved,) = await self._store.reschedule([change])
        self._check(moved, "rescheduled", "only a scheduled or ready task can be")
        if moved.kind is not None:
            self._announcer.announce_later([moved.kind])
            if moved.state is State.READY:
                self._announcer.announce_ready({(moved.kind, None, KIND_DEFAULT): 1})
            self._announcer.announce_key_queues([moved])

    async def set_priority(self, task_id: int, priority: int) -> None:
        """Change the priority of a live task that is not running and not a command."""
        (moved,) = await self._store.set_priority(
            [Reprioritizing(id=check_id(task_id), priority=check_priority(priority))]
        )
        self._check(moved, "given another priority", "only a task that waits can be")
        self._announcer.announce_key_queues([moved])

    async def extend_timeout(self, task_id: int, duration: Duration) -> None:
        """Give the running attempt of a task more time."""
        extra = microseconds(seconds(duration, "extend_timeout", positive=True))
        (moved,) = await self._store.extend_timeout([Extension(id=check_id(task_id), extra=extra)])
        self._check(moved, "given more time", "only a running task can be")
        self._announcer.announce_moves([moved])

    async def update_meta(self, task_id: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Change the metadata of a task. Returns all of it."""
        plain: dict[str, Any] = msgspec.json.decode(check_meta(values))
        (meta,) = await self._store.update_meta([MetaChange(id=check_id(task_id), values=plain)])
        if meta is None:
            raise _not_found(task_id)
        return meta

    async def prune(self, retention: Retention) -> int:
        """Delete final tasks that are older than this, in bounded transactions. Returns how many there were."""
        cutoffs = cutoffs_of(retention)
        total = pruned = await self._store.prune(cutoffs, PRUNED_AT_ONCE)
        while pruned >= PRUNED_AT_ONCE:
            pruned = await self._store.prune(cutoffs, PRUNED_AT_ONCE)
            total += pruned
        return total

    @staticmethod
    def _check(moved: Moved, what: str, advice: str) -> None:
        if moved.done:
            return
        if moved.state is None:
            raise _not_found(moved.id)
        raise IllegalMove(f"task {moved.id} is {moved.state} and cannot be {what}; {advice}", moved.id)


def query_of(filters: Mapping[str, Any]) -> TaskQuery:
    """The checked filters of a listing."""
    given = {name: value for name, value in filters.items() if value is not None}
    states = _states(given.pop("state", None))
    for name, value in given.items():
        if not isinstance(value, str):
            raise OptionError(f"{name} must be text, got {value!r}")
        if not is_storable(value):
            raise OptionError(f"{name} must be text that a database can hold, got {value!r}")
    return TaskQuery(states=states, **given)


def _states(state: State | str | Iterable[State | str] | None) -> frozenset[State] | None:
    if state is None:
        return None
    words = [state] if isinstance(state, str) else list(state)
    try:
        return frozenset(State(word) for word in words)
    except ValueError as error:
        raise OptionError(f"{error}; a task's state is one of {', '.join(State)}") from None


def check_due(delay: Duration | None, run_at: datetime | None) -> tuple[int | None, int | None]:
    """The new due time of a task: a delay in microseconds, or a moment."""
    if (delay is None) == (run_at is None):
        raise OptionError("reschedule takes delay or run_at, and exactly one of them")
    return (
        microseconds(seconds(delay, "delay")) if delay is not None else None,
        check_moment(run_at, "run_at") if run_at is not None else None,
    )


def check_id(task_id: Any) -> int:
    """Return the id if a store could have assigned it. Raises OptionError or TaskNotFound otherwise."""
    if isinstance(task_id, bool) or not isinstance(task_id, int):
        raise OptionError(f"a task's id is a whole number, got {task_id!r}")
    if not 0 < task_id < 2**63:
        raise _not_found(task_id)
    return task_id


def check_why(why: Any) -> str | None:
    """The reason for a cancellation, as it can be stored. Raises OptionError if it is not text."""
    if why is None:
        return None
    if not isinstance(why, str):
        raise OptionError(f"why must be text, got {why!r}")
    return storable(why)


def _not_found(task_id: int) -> TaskError:
    return TaskNotFound(
        f"there is no task {task_id}: it never existed, was deleted, or its history was pruned", task_id
    )
