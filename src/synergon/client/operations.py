"""What can be asked of tasks, and done to them, once they are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from synergon.client.waiters import Waiters
from synergon.errors import IllegalMove, KeyConflict, OptionError, TaskError, TaskNotFound
from synergon.explain.explainer import explain
from synergon.explain.explanation import Explanation
from synergon.model.lifecycle import State
from synergon.model.nodes import NodeRecord
from synergon.model.record import storable
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.model.tasks import Moved, Reprioritizing, Rescheduling
from synergon.node.node import Node
from synergon.options.durations import Duration, microseconds, seconds
from synergon.options.options import check_moment, check_priority
from synergon.peering.peers import Peers
from synergon.peering.router import ReadyGroupName
from synergon.stores.base import Store

EXPLAIN_TRIES: Final = 3
"""A task that moves on faster than it can be explained gets the last answer."""


class Operations:
    """The half of an Engine that works on stored tasks. The store decides; what it changed, the node here is told."""

    @property
    def store(self) -> Store:
        """The connected store."""
        raise NotImplementedError

    @property
    def waiters(self) -> Waiters:
        """Whoever waits for results."""
        raise NotImplementedError

    @property
    def node(self) -> Node | None:
        """The node that runs in this process, if any."""
        raise NotImplementedError

    @property
    def peers(self) -> Peers | None:
        """The other engines on this store; None if nobody else could be there."""
        raise NotImplementedError

    # ------------------------------------------------------------ reading

    async def get(self, task_id: int) -> TaskRecord:
        """One task, live or ended; TaskNotFound if there is none."""
        (record,) = await self.store.get([check_id(task_id)])
        if record is None:
            raise _not_found(task_id)
        return record

    async def explain(self, task_id: int) -> Explanation:
        """Why a task waits, on every node; or how it runs, or what became of it. TaskNotFound if there is none.

        Other nodes are judged by what they last said of themselves, which is at most a heartbeat old (`age`).
        """
        record = await self.get(task_id)
        for _ in range(EXPLAIN_TRIES):
            explanation = await explain(self.store, self.node, record)
            before, record = record, await self.get(task_id)
            if (before.state, before.claim_no) == (record.state, record.claim_no):
                break  # else it has moved on while nodes were looked at, and what was found is of two moments
        return explanation

    async def tasks(
        self,
        *,
        state: State | str | Iterable[State | str] | None = None,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        key: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> TaskPage:
        """Tasks that match, newest first, one page; give its `next` as `before` for the following one."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 10_000:
            raise OptionError(f"limit must be a whole number from 1 to 10000, got {limit!r}")
        for name, value in {"kind": kind, "queue": queue, "tag": tag, "key": key}.items():
            if value is not None and not isinstance(value, str):
                raise OptionError(f"{name} must be text, got {value!r}")
        if before is not None:
            before = check_id(before)
        query = TaskQuery(states=_states(state), kind=kind, queue=queue, tag=tag, key=key, before=before, limit=limit)
        return await self.store.list_tasks(query)

    async def counts(self, *, kind: str | None = None, queue: str | None = None) -> dict[State, int]:
        """How many tasks are in each state, exactly."""
        totals = dict.fromkeys(State, 0)
        for (its_queue, its_kind, state), number in (await self.store.counts()).items():
            if kind in (None, its_kind) and queue in (None, its_queue):
                totals[state] += number
        return totals

    async def queues(self) -> list[QueueRecord]:
        """All queues, whether they are paused, and how many tasks they hold."""
        return await self.store.queues()

    async def nodes(self) -> list[NodeRecord]:
        """All registered nodes. Engines that only wait for results have rows too; they run nothing and are no nodes."""
        return [node for node in await self.store.nodes() if node.concurrency]

    # ------------------------------------------------------------ operations

    async def cancel(self, task_id: int, why: str | None = None) -> bool:
        """Cancel a task in whatever state it is: at once if it waits, as soon as its body ends if it runs.

        False: it had ended already. TaskNotFound if there is none.
        """
        (moved,) = await self.store.cancel([check_id(task_id)], None if why is None else storable(why))
        if moved.state is None:
            raise _not_found(task_id)
        self.announce_moves([moved])
        return moved.done

    async def cancel_group(self, group_id: int, why: str | None = None) -> int:
        """Cancel all tasks of a group that have not ended; how many that were."""
        moves = await self.store.cancel_group(group_id, None if why is None else storable(why))
        self.announce_moves(moves)
        return sum(moved.done for moved in moves)

    async def retry(self, task_id: int) -> None:
        """Run an ended task again, under the same id, with its budgets reset."""
        (moved,) = await self.store.retry([check_id(task_id)])
        if moved.key_holder is not None:
            raise KeyConflict(
                f"task {task_id} cannot be retried: task {moved.key_holder} is live and holds its key", moved.key_holder
            )
        self._check(moved, "retried", "only an ended task can be")
        self.announce_moves([moved])

    async def delete(self, task_id: int) -> None:
        """Remove a task without a trace; whoever waits for it gets TaskDeleted. A running one is refused."""
        (moved,) = await self.store.delete([check_id(task_id)])
        if not moved.done:
            self._check(moved, "deleted", "cancel it first")
        self.announce_moves([moved])

    def announce_moves(self, moves: Iterable[Moved]) -> None:
        """Tell whoever it concerns, here and elsewhere, what a cancel, a retry or a delete has done."""
        done = [moved for moved in moves if moved.done]
        for moved in done:
            if moved.state is State.RUNNING:
                self._announce_cancel(moved)
        ready = Counter(moved.kind for moved in done if moved.state is State.READY and moved.kind is not None)
        if ready:
            self._announce_ready({(kind, None, KIND_DEFAULT): count for kind, count in ready.items()})
        ended = [moved.id for moved in done if moved.state in (None, State.CANCELLED)]
        self.waiters.tell(ended)
        if self.peers is not None:
            self.peers.tell_ended(ended)
        if any(moved.group_id is not None for moved in done):
            self._announce_change()
        self._announce_lines(moved for moved in done if moved.state is not State.RUNNING)

    def _announce_cancel(self, moved: Moved) -> None:
        if self.node is not None:
            self.node.cancel(moved.id)
        if self.peers is not None and moved.node_id is not None:
            self.peers.tell_cancel(moved.node_id, moved.id)

    def _announce_change(self) -> None:
        """Something may be possible now that was not, and which kinds it concerns is not known here."""
        if self.node is not None:
            self.node.look_everywhere()
        if self.peers is not None:
            self.peers.tell_control()

    def _announce_lines(self, moves: Iterable[Moved]) -> None:
        """What stood behind these in their lines may be ready now, or have its turn."""
        kinds = Counter(moved.kind for moved in moves if moved.kind is not None and self.has_lines(moved.kind))
        if kinds:
            self._announce_ready({(kind, None, KIND_DEFAULT): count for kind, count in kinds.items()})
            self._announce_later(kinds)

    def has_lines(self, kind: str) -> bool:
        """Whether tasks of the kind stand in line, as far as is known here."""
        raise NotImplementedError

    async def reschedule(self, task_id: int, *, delay: Duration | None = None, run_at: datetime | None = None) -> None:
        """Change when a scheduled or ready task is due."""
        if (delay is None) == (run_at is None):
            raise OptionError("reschedule takes delay or run_at, and exactly one of them")
        change = Rescheduling(
            id=check_id(task_id),
            delay=microseconds(seconds(delay, "delay")) if delay is not None else None,
            run_at=check_moment(run_at, "run_at") if run_at is not None else None,
        )
        (moved,) = await self.store.reschedule([change])
        self._check(moved, "rescheduled", "only a scheduled or ready task can be")
        if moved.kind is not None:
            self._announce_later([moved.kind])
            if moved.state is State.READY:
                self._announce_ready({(moved.kind, None, KIND_DEFAULT): 1})
            self._announce_lines([moved])

    async def set_priority(self, task_id: int, priority: int) -> None:
        """Change the priority of a task that has not started."""
        (moved,) = await self.store.set_priority(
            [Reprioritizing(id=check_id(task_id), priority=check_priority(priority))]
        )
        self._check(moved, "given another priority", "only a task that waits can be")
        self._announce_lines([moved])

    def _announce_ready(self, work: Mapping[ReadyGroupName, int]) -> bool:
        """There are so many tasks to start in these lanes; whether peers are told so as soon as others have a turn."""
        if self.node is not None:
            self.node.announce(work)
            return False
        return self.peers is not None and self.peers.tell_new(work)

    def _announce_later(self, kinds: Iterable[str]) -> None:
        """Tasks of these kinds are due, or expire, some time: somebody must watch the clock for them."""
        if self.node is not None:
            self.node.alarm.look()
        elif self.peers is not None:
            self.peers.tell_scheduled(kinds)

    @staticmethod
    def _check(moved: Moved, what: str, advice: str) -> None:
        if moved.done:
            return
        if moved.state is None:
            raise _not_found(moved.id)
        raise IllegalMove(f"task {moved.id} is {moved.state} and cannot be {what}; {advice}", moved.id)


def _states(state: State | str | Iterable[State | str] | None) -> frozenset[State] | None:
    if state is None:
        return None
    words = [state] if isinstance(state, str) else list(state)
    try:
        return frozenset(State(word) for word in words)
    except ValueError as error:
        raise OptionError(f"{error}; a task's state is one of {', '.join(State)}") from None


def check_id(task_id: Any) -> int:
    """An id that a store could have given."""
    if isinstance(task_id, bool) or not isinstance(task_id, int):
        raise OptionError(f"a task's id is a whole number, got {task_id!r}")
    if not 0 < task_id < 2**63:
        raise _not_found(task_id)
    return task_id


def _not_found(task_id: int) -> TaskError:
    return TaskNotFound(
        f"there is no task {task_id}: it never existed, was deleted, or its history was pruned", task_id
    )
