"""Key queues in the PostgreSQL store, with their tasks and rates: implements `stores.claim_primitives.KeyQueueRows`
with the statements of `sql/key_queues.sql`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from synergon.model.record import to_datetime
from synergon.stores import claim_primitives as port
from synergon.stores.postgres.lock_order import lock_key_queues
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ChangedTask, KeyQueueCounts, KeyQueueLimit, KeyQueueName, NextBatch, RateState


class KeyQueueRows(port.KeyQueueRows):
    """Implements `stores.claim_primitives.KeyQueueRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def limits(self, kinds: Collection[str]) -> dict[str, KeyQueueLimit]:
        await lock_key_queues(self._transaction, kinds)
        return {kind: self._transaction.key_queue_limits[kind] for kind in kinds}

    async def counts(self, names: Sequence[KeyQueueName], few: int) -> list[KeyQueueCounts]:
        return await self._transaction.typed(KeyQueueCounts, "key_queue_counts", *_columns(names), few)

    async def first_waiting(self, name: KeyQueueName, limit: int) -> list[int]:
        return await self._transaction.ids("first_waiting", *name, limit)

    async def excess(self, name: KeyQueueName, allowed: int) -> list[int]:
        return await self._transaction.ids("excess", *name, allowed)

    async def promote(self, ids: Sequence[int]) -> Sequence[int]:
        return await self._transaction.ids("promote", ids)

    async def promote_all(self, names: Sequence[KeyQueueName]) -> list[ChangedTask]:
        return await self._transaction.typed(ChangedTask, "promote_all", *_columns(names))

    async def demote(self, ids: Sequence[int]) -> list[ChangedTask]:
        return await self._transaction.typed(ChangedTask, "demote", ids)

    async def rates(self, names: Sequence[KeyQueueName]) -> list[RateState]:
        return await self._transaction.typed(RateState, "key_queue_rates", *_columns(names))

    async def queue_due(self, name: KeyQueueName, now: int) -> list[ChangedTask]:
        return await self._transaction.typed(ChangedTask, "queue_due", *name, to_datetime(now))

    async def postpone(self, moments: Mapping[int, int]) -> list[ChangedTask]:
        due = [to_datetime(moment) for moment in moments.values()]
        return await self._transaction.typed(ChangedTask, "postpone", list(moments), due)

    async def set_next_starts(self, moments: Mapping[KeyQueueName, int]) -> None:
        await self._transaction.run("set_next_starts", *_columns(moments), list(moments.values()))

    async def next_batches(self, names: Sequence[KeyQueueName], size: int) -> list[NextBatch]:
        """Read what each of these key queues has for a batch of this size."""
        return await self._transaction.typed(NextBatch, "next_batches", *_columns(names), size)

    async def set_alarms(self, moments: Mapping[KeyQueueName, int | None]) -> None:
        """Store the moment at which the next batch of each key queue is due. None deletes the stored one."""
        stored = {name: to_datetime(moment) for name, moment in moments.items() if moment is not None}
        if stored:
            await self._transaction.run("set_alarms", *_columns(stored), list(stored.values()))
        if deleted := [name for name, moment in moments.items() if moment is None]:
            await self._transaction.run("delete_alarms", *_columns(deleted))

    async def due_alarms(self, limit: int) -> list[KeyQueueName]:
        """The key queues whose stored moment has come, earliest first."""
        return [(row["kind"], row["limit_key"]) for row in await self._transaction.rows("due_alarms", limit)]

    async def of_kind(self, kind: str) -> list[KeyQueueName]:
        rows = await self._transaction.rows("key_queues_of_kind", kind)
        return [(kind, row["limit_key"]) for row in rows]

    async def of_queue(self, queue: str) -> list[KeyQueueName]:
        rows = await self._transaction.rows("key_queues_of_queue", queue)
        return [(row["kind"], row["limit_key"]) for row in rows]

    async def prune_rates(self, limit: int) -> None:
        await self._transaction.run("prune_rates", limit)


def _columns(names: Iterable[KeyQueueName]) -> tuple[list[str], list[str]]:
    pairs = list(names)
    return [kind for kind, _ in pairs], [key for _, key in pairs]
