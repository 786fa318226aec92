"""Key queues in the memory store, with their tasks and rates: implements `stores.claim_primitives.KeyQueueRows` over
the store's tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import State
from synergon.model.limits import KEY_QUEUES
from synergon.stores import claim_primitives as port
from synergon.stores.memory.key_queues import KeyQueue
from synergon.stores.memory.row import Row, changed_task
from synergon.stores.rows import (
    ChangedTask,
    KeyQueueCounts,
    KeyQueueLimit,
    KeyQueueName,
    NextBatch,
    Position,
    RateState,
)

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class KeyQueueRows(port.KeyQueueRows):
    """Implements `stores.claim_primitives.KeyQueueRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._tables: Final = session.tables

    async def limits(self, kinds: Collection[str]) -> dict[str, KeyQueueLimit]:
        """Read the limits `key:<kind>` of these kinds."""
        return {kind: self._limit(kind) for kind in kinds}

    def _limit(self, kind: str) -> KeyQueueLimit:
        limit = self._tables.limits.get(KEY_QUEUES + kind)
        return KeyQueueLimit() if limit is None else KeyQueueLimit(limit.value, limit.rate, limit.batch)

    async def counts(self, names: Sequence[KeyQueueName], few: int) -> list[KeyQueueCounts]:
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
        key_queue = self._tables.key_queues.get(name)
        return [] if key_queue is None else [row.id for row in self._first_waiting(key_queue, limit)]

    async def excess(self, name: KeyQueueName, allowed: int) -> list[int]:
        key_queue = self._tables.key_queues[name]
        open_ready = [row for row in key_queue.rows(State.READY) if not self._is_paused(row.task.queue)]
        waiting = self._first_waiting(key_queue, min(allowed, key_queue.waiting_count))
        staying = {row.id for row in nsmallest(allowed, [*open_ready, *waiting], key=_position)}
        return [row.id for row in key_queue.rows(State.READY) if row.id not in staying]

    async def promote(self, ids: Sequence[int]) -> Sequence[int]:
        for task_id in ids:
            self._tables.shift(self._tables.rows[task_id], State.READY)
        return ids

    def _shift(self, rows: Iterable[Row], state: State) -> list[ChangedTask]:
        changed = []
        for row in rows:
            self._tables.shift(row, state)
            changed.append(changed_task(row))
        return changed

    async def promote_all(self, names: Sequence[KeyQueueName]) -> list[ChangedTask]:
        rows = [row for key_queue in self._found(names) for row in key_queue.rows(State.WAITING)]
        return self._shift(rows, State.READY)

    async def demote(self, ids: Sequence[int]) -> list[ChangedTask]:
        return self._shift((self._tables.rows[task_id] for task_id in ids), State.WAITING)

    async def rates(self, names: Sequence[KeyQueueName]) -> list[RateState]:
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
        scheduled = self._tables.key_queues[name].scheduled
        return self._shift(scheduled.due(now, scheduled.count), State.WAITING)

    async def postpone(self, moments: Mapping[int, int]) -> list[ChangedTask]:
        rows = [self._tables.rows[task_id] for task_id in moments]
        for row in rows:
            self._tables.postpone(row, moments[row.id])
        return [changed_task(row) for row in rows]

    async def set_next_starts(self, moments: Mapping[KeyQueueName, int]) -> None:
        self._tables.next_starts.update(moments)

    async def next_batches(self, names: Sequence[KeyQueueName], size: int) -> list[NextBatch]:
        """Count the tasks that each of these key queues has for a batch of `size` tasks."""
        return [self._next_batch(name, size) for name in names]

    def _next_batch(self, name: KeyQueueName, size: int) -> NextBatch:
        key_queue, alarm = self._tables.key_queues.get(name), self._tables.batch_alarms.get(name)
        if key_queue is None:
            return NextBatch(*name, 0, 0, None, alarm)
        ready = list(key_queue.rows(State.READY))
        counted = [row for row in ready if not self._is_paused(row.task.queue)]
        waiting = sum(index.count for queue, index in key_queue.waiting.items() if not self._is_paused(queue))
        if len(counted) + waiting < size:  # otherwise the batch is complete, and no moment matters
            counted += self._first_waiting(key_queue, waiting)
            waiting = 0
        since = min((row.run_at for row in counted), default=None)
        return NextBatch(*name, len(ready), len(counted) + waiting, since, alarm)

    async def set_alarms(self, moments: Mapping[KeyQueueName, int | None]) -> None:
        """Store the moment at which the next batch of each key queue is due. None deletes the stored one."""
        for name, moment in moments.items():
            if moment is None:
                self._tables.batch_alarms.pop(name, None)
            else:
                self._tables.batch_alarms[name] = moment

    async def due_alarms(self, limit: int) -> list[KeyQueueName]:
        """The key queues whose stored moment has come, earliest first."""
        due = [(moment, name) for name, moment in self._tables.batch_alarms.items() if moment <= self._session.now]
        return [name for _, name in nsmallest(limit, due)]

    async def of_kind(self, kind: str) -> list[KeyQueueName]:
        """The key queues of a kind that have live tasks."""
        return [(key_queue.kind, key_queue.key) for key_queue in self._tables.key_queues_of(kind)]

    async def of_queue(self, queue: str) -> list[KeyQueueName]:
        found = self._tables.key_queues.items()
        return [name for name, key_queue in found if queue in key_queue.ready or queue in key_queue.waiting]

    async def prune_rates(self, limit: int) -> None:
        next_starts, now = self._tables.next_starts, self._session.now
        past = [name for name, moment in next_starts.items() if moment <= now]
        for name in past[:limit]:
            del next_starts[name]


def _position(row: Row) -> Position:
    return -row.priority, row.id
