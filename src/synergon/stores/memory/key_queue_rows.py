"""Key queues in the memory store, with their tasks and rates: implements `stores.session.KeyQueueRows` over the store's
tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import State
from synergon.stores.memory.key_queues import KeyQueue
from synergon.stores.memory.row import Row
from synergon.stores.rows import ChangedTask, KeyQueueCounts, KeyQueueLimit, KeyQueueName, Position, RateState
from synergon.stores.rules.limits import KEY_QUEUES

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class KeyQueueRows:
    """Implements `stores.session.KeyQueueRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._tables: Final = session.tables

    async def limits(self, kinds: Collection[str]) -> dict[str, KeyQueueLimit]:
        """Read the limits `key:<kind>` of these kinds."""
        return {kind: self._limit(kind) for kind in kinds}

    def _limit(self, kind: str) -> KeyQueueLimit:
        limit = self._tables.limits.get(KEY_QUEUES + kind)
        return KeyQueueLimit() if limit is None else KeyQueueLimit(limit.value, limit.rate)

    async def counts(self, names: Sequence[KeyQueueName], few: int) -> list[KeyQueueCounts]:
        """Count the running and ready tasks of these key queues, and read the first `few` waiting ones of each."""
        return [self._count(key_queue, few) for key_queue in self._found(names)]

    def _found(self, names: Iterable[KeyQueueName]) -> list[KeyQueue]:
        key_queues = self._tables.key_queues
        return [key_queues[name] for name in names if name in key_queues]

    def _count(self, key_queue: KeyQueue, few: int) -> KeyQueueCounts:
        last = key_queue.last_ready()
        return KeyQueueCounts(
            key_queue.kind,
            key_queue.key,
            key_queue.running,
            key_queue.ready_count,
            sum(agenda.count for queue, agenda in key_queue.ready.items() if self._is_paused(queue)),
            None if last is None else _position(last),
            tuple(_position(row) for row in self._first_waiting(key_queue, few)),
        )

    def _is_paused(self, queue: str) -> bool:
        return self._tables.queues.get(queue) is not None

    def _first_waiting(self, key_queue: KeyQueue, limit: int) -> list[Row]:
        found = [agenda.firsts(limit) for queue, agenda in key_queue.waiting.items() if not self._is_paused(queue)]
        return found[0] if len(found) == 1 else nsmallest(limit, (row for rows in found for row in rows), key=_position)

    async def first_waiting(self, name: KeyQueueName, limit: int) -> list[int]:
        """The first waiting tasks in claim order, except those of paused queues."""
        return [row.id for row in self._first_waiting(self._tables.key_queues[name], limit)]

    async def excess(self, name: KeyQueueName, allowed: int) -> list[int]:
        """The ready tasks that are not among the first `allowed` ready and waiting tasks in claim order. Tasks of
        paused queues do not count towards `allowed`."""
        key_queue = self._tables.key_queues[name]
        open_ready = [row for row in key_queue.rows(State.READY) if not self._is_paused(row.task.queue)]
        waiting = self._first_waiting(key_queue, min(allowed, key_queue.waiting_count))
        staying = {row.id for row in nsmallest(allowed, [*open_ready, *waiting], key=_position)}
        return [row.id for row in key_queue.rows(State.READY) if row.id not in staying]

    async def promote(self, ids: Sequence[int]) -> Sequence[int]:
        """Move tasks from `waiting` to `ready`."""
        for task_id in ids:
            self._tables.shift(self._tables.rows[task_id], State.READY)
        return ids

    def _shift(self, rows: Iterable[Row], state: State) -> list[ChangedTask]:
        changed = []
        for row in rows:
            self._tables.shift(row, state)
            changed.append(_changed(row))
        return changed

    async def promote_all(self, names: Sequence[KeyQueueName]) -> list[ChangedTask]:
        """Move all waiting tasks of these key queues to `ready`."""
        rows = [row for key_queue in self._found(names) for row in key_queue.rows(State.WAITING)]
        return self._shift(rows, State.READY)

    async def demote(self, ids: Sequence[int]) -> list[ChangedTask]:
        """Move tasks from `ready` to `waiting`."""
        return self._shift((self._tables.rows[task_id] for task_id in ids), State.WAITING)

    async def rates(self, names: Sequence[KeyQueueName]) -> list[RateState]:
        """Read the stored rates of these key queues, and when their scheduled tasks are due."""
        return [self._rate(name) for name in names]

    def _rate(self, name: KeyQueueName) -> RateState:
        now, next_at = self._session.now, self._tables.next_starts.get(name)
        key_queue = self._tables.key_queues.get(name)
        first = None if key_queue is None else key_queue.scheduled.next_moment()
        if key_queue is None or first is None or first > now:
            return RateState(*name, now, next_at, is_due=False, next_scheduled=first)
        later = [row.run_at for row in key_queue.scheduled.rows() if row.run_at > now]
        return RateState(*name, now, next_at, is_due=True, next_scheduled=min(later, default=None))

    async def queue_due(self, name: KeyQueueName, now: int) -> list[ChangedTask]:
        """Move due tasks of a key queue from `scheduled` to `waiting`."""
        scheduled = self._tables.key_queues[name].scheduled
        return self._shift(scheduled.due(now, scheduled.count), State.WAITING)

    async def postpone(self, moments: Mapping[int, int]) -> list[ChangedTask]:
        """Move tasks from `waiting` to `scheduled`, due at these moments."""
        rows = [self._tables.rows[task_id] for task_id in moments]
        for row in rows:
            self._tables.postpone(row, moments[row.id])
        return [_changed(row) for row in rows]

    async def set_next_starts(self, moments: Mapping[KeyQueueName, int]) -> None:
        """Store from which moment the next start of each key queue is within its rate."""
        self._tables.next_starts.update(moments)

    async def of_kind(self, kind: str) -> list[KeyQueueName]:
        """The key queues of a kind that have live tasks."""
        return [(key_queue.kind, key_queue.key) for key_queue in self._tables.key_queues_of(kind)]

    async def of_queue(self, queue: str) -> list[KeyQueueName]:
        """The key queues that have ready or waiting tasks in a queue."""
        found = self._tables.key_queues.items()
        return [name for name, key_queue in found if queue in key_queue.ready or queue in key_queue.waiting]

    async def prune_rates(self, limit: int) -> None:
        """Delete at most `limit` stored rates whose moment has passed: they delay no start."""
        next_starts, now = self._tables.next_starts, self._session.now
        past = [name for name, moment in next_starts.items() if moment <= now]
        for name in past[:limit]:
            del next_starts[name]


def _position(row: Row) -> Position:
    return -row.priority, row.id


def _changed(row: Row) -> ChangedTask:
    return ChangedTask(row.id, row.task.kind, row.state, row.limit_key, row.task.group_id)
