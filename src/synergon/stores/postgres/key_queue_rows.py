"""Key queues in the PostgreSQL store, with their tasks and rates: implements `stores.session.KeyQueueRows` with the
statements of `sql/key_queues.sql`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from synergon.model.record import to_datetime
from synergon.stores.postgres.lock_order import lock_key_queues
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ChangedTask, KeyQueueCounts, KeyQueueLimit, KeyQueueName, RateState


class KeyQueueRows:
    """Implements `stores.session.KeyQueueRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def limits(self, kinds: Collection[str]) -> dict[str, KeyQueueLimit]:
        """Lock the key queues of these kinds, and read their limits. A kind without a limit gets `KeyQueueLimit()`."""
        await lock_key_queues(self._transaction, kinds)
        return {kind: self._transaction.key_queue_limits[kind] for kind in kinds}

    async def counts(self, names: Sequence[KeyQueueName], few: int) -> list[KeyQueueCounts]:
        """Count the running and ready tasks of these key queues, and read the first `few` waiting ones of each."""
        return await self._transaction.typed(KeyQueueCounts, "key_queue_counts", *_columns(names), few)

    async def first_waiting(self, name: KeyQueueName, limit: int) -> list[int]:
        """The first waiting tasks in claim order, except those of paused queues."""
        return await self._transaction.ids("first_waiting", *name, limit)

    async def excess(self, name: KeyQueueName, allowed: int) -> list[int]:
        """The ready tasks that are not among the first `allowed` ready and waiting tasks in claim order. Tasks of
        paused queues do not count towards `allowed`."""
        return await self._transaction.ids("excess", *name, allowed)

    async def promote(self, ids: Sequence[int]) -> Sequence[int]:
        """Move tasks from `waiting` to `ready`. Returns the tasks that were moved."""
        return await self._transaction.ids("promote", ids)

    async def promote_all(self, names: Sequence[KeyQueueName]) -> list[ChangedTask]:
        """Move all waiting tasks of these key queues to `ready`."""
        return await self._transaction.typed(ChangedTask, "promote_all", *_columns(names))

    async def demote(self, ids: Sequence[int]) -> list[ChangedTask]:
        """Move tasks from `ready` to `waiting`. Returns the moved tasks, without those that a concurrent claim has
        taken."""
        return await self._transaction.typed(ChangedTask, "demote", ids)

    async def rates(self, names: Sequence[KeyQueueName]) -> list[RateState]:
        """Read the stored rates of these key queues, and when their scheduled tasks are due."""
        return await self._transaction.typed(RateState, "key_queue_rates", *_columns(names))

    async def queue_due(self, name: KeyQueueName, now: int) -> list[ChangedTask]:
        """Move due tasks of a key queue from `scheduled` to `waiting`."""
        return await self._transaction.typed(ChangedTask, "queue_due", *name, to_datetime(now))

    async def postpone(self, moments: Mapping[int, int]) -> list[ChangedTask]:
        """Move tasks from `waiting` to `scheduled`, due at these moments."""
        due = [to_datetime(moment) for moment in moments.values()]
        return await self._transaction.typed(ChangedTask, "postpone", list(moments), due)

    async def set_next_starts(self, moments: Mapping[KeyQueueName, int]) -> None:
        """Store from which moment the next start of each key queue is within its rate."""
        await self._transaction.run("set_next_starts", *_columns(moments), list(moments.values()))

    async def of_kind(self, kind: str) -> list[KeyQueueName]:
        """The key queues of a kind that have ready or waiting tasks."""
        rows = await self._transaction.rows("key_queues_of_kind", kind)
        return [(kind, row["limit_key"]) for row in rows]

    async def of_queue(self, queue: str) -> list[KeyQueueName]:
        """The key queues that have ready or waiting tasks in a queue."""
        rows = await self._transaction.rows("key_queues_of_queue", queue)
        return [(row["kind"], row["limit_key"]) for row in rows]

    async def prune_rates(self, limit: int) -> None:
        """Delete at most `limit` stored rates whose moment has passed: they delay no start."""
        await self._transaction.run("prune_rates", limit)


def _columns(names: Iterable[KeyQueueName]) -> tuple[list[str], list[str]]:
    pairs = list(names)
    return [kind for kind, _ in pairs], [key for _, key in pairs]
