"""Key queues, with their tasks and rates: implements `stores.claim_primitives.KeyQueueRows` with the statements of
`sql/key_queues.sql`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from synergon.stores import claim_primitives as port
from synergon.stores.rows import ChangedTask, KeyQueueCounts, KeyQueueName, NextBatch, RateState
from synergon.stores.sql_rows.named_statements import SqlRows


class _NameRow(msgspec.Struct, frozen=True):
    kind: str
    limit_key: str


class KeyQueueRows(SqlRows, port.KeyQueueRows):
    """Implements `stores.claim_primitives.KeyQueueRows`, without `limits`."""

    __slots__ = ()

    async def counts(self, names: Sequence[KeyQueueName], few: int) -> list[KeyQueueCounts]:
        return await self._sql.typed(KeyQueueCounts, "key_queue_counts", *self._sql.pairs(names), few)

    async def first_waiting(self, name: KeyQueueName, limit: int) -> list[int]:
        return await self._sql.ids("first_waiting", *name, limit)

    async def excess(self, name: KeyQueueName, allowed: int) -> list[int]:
        return await self._sql.ids("excess", *name, allowed)

    async def promote(self, ids: Sequence[int]) -> Sequence[int]:
        return await self._sql.ids("promote", list(ids))

    async def promote_all(self, names: Sequence[KeyQueueName]) -> list[ChangedTask]:
        return await self._sql.typed(ChangedTask, "promote_all", *self._sql.pairs(names))

    async def demote(self, ids: Sequence[int]) -> list[ChangedTask]:
        return await self._sql.typed(ChangedTask, "demote", list(ids))

    async def rates(self, names: Sequence[KeyQueueName]) -> list[RateState]:
        return await self._sql.typed(RateState, "key_queue_rates", *self._sql.pairs(names))

    async def queue_due(self, name: KeyQueueName, now: int) -> list[ChangedTask]:
        return await self._sql.typed(ChangedTask, "queue_due", *name, self._sql.moment(now))

    async def postpone(self, moments: Mapping[int, int]) -> list[ChangedTask]:
        due = [(task_id, self._sql.moment(moment)) for task_id, moment in moments.items()]
        return await self._sql.typed(ChangedTask, "postpone", *self._sql.pairs(due))

    async def set_next_starts(self, moments: Mapping[KeyQueueName, int]) -> None:
        await self._sql.run_all("set_next_starts", [(*name, moment) for name, moment in moments.items()])

    async def next_batches(self, names: Sequence[KeyQueueName], size: int) -> list[NextBatch]:
        return await self._sql.typed(NextBatch, "next_batches", *self._sql.pairs(names), size)

    async def set_alarms(self, moments: Mapping[KeyQueueName, int | None]) -> None:
        stored = [(*name, self._sql.moment(moment)) for name, moment in moments.items() if moment is not None]
        await self._sql.run_all("set_alarms", stored)
        await self._sql.run_all("delete_alarms", [name for name, moment in moments.items() if moment is None])

    async def due_alarms(self, limit: int) -> list[KeyQueueName]:
        return await self._names("due_alarms", limit)

    async def of_kind(self, kind: str) -> list[KeyQueueName]:
        return await self._names("key_queues_of_kind", kind)

    async def of_queue(self, queue: str) -> list[KeyQueueName]:
        return await self._names("key_queues_of_queue", queue)

    async def prune_rates(self, limit: int) -> None:
        await self._sql.run("prune_rates", limit)

    async def _names(self, statement: str, parameter: int | str) -> list[KeyQueueName]:
        return [(row.kind, row.limit_key) for row in await self._sql.typed(_NameRow, statement, parameter)]
