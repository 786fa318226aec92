"""Key queues in the SQLite store, with their tasks and rates: implements `stores.claim_primitives.KeyQueueRows` with
the statements of `sql/key_queues.sql`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from synergon.stores import claim_primitives as port
from synergon.stores.rows import (
    ChangedTask,
    KeyQueueCounts,
    KeyQueueLimit,
    KeyQueueName,
    LimitRow,
    NextBatch,
    RateState,
)
from synergon.stores.session import KEY_QUEUES_AT_ONCE
from synergon.stores.sqlite.transaction import SQL, Transaction, as_json
from synergon.stores.typed_rows import Row

SIZES: Final = (1, 4, 16, 64, 256, KEY_QUEUES_AT_ONCE)
"""A list of key queues is padded with NULLs to one of these lengths, so that few statements have to be prepared. The
names are parameters and not JSON, because SQLite cuts a JSON string at a zero byte."""

_TEXTS: Final = {
    (name, size): SQL[name].replace("{names}", ", ".join(["(?, ?)"] * size))
    for name in ("key_queue_counts", "key_queue_rates", "promote_all")
    for size in SIZES
}


class _NameRow(msgspec.Struct, frozen=True):
    kind: str
    limit_key: str


class KeyQueueRows(port.KeyQueueRows):
    """Implements `stores.claim_primitives.KeyQueueRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def limits(self, kinds: Collection[str]) -> dict[str, KeyQueueLimit]:
        """Read the limits `key:<kind>` of these kinds. A kind without a limit gets `KeyQueueLimit()`."""
        return {kind: self._limit(kind) for kind in kinds}

    def _limit(self, kind: str) -> KeyQueueLimit:
        for row in self._transaction.typed(LimitRow, "key_queue_limit", kind):
            return row.of_key_queues
        return KeyQueueLimit()

    async def counts(self, names: Sequence[KeyQueueName], few: int) -> list[KeyQueueCounts]:
        return self._of_names(KeyQueueCounts, "key_queue_counts", names, few)

    def _of_names(self, row_type: type[Row], statement: str, names: Sequence[KeyQueueName], *more: int) -> list[Row]:
        """The rows of a statement that takes a list of key queue names, and perhaps other parameters."""
        size = next(size for size in SIZES if size >= len(names))
        padding: list[Any] = [None] * (2 * (size - len(names)))
        parameters = [*chain.from_iterable(names), *padding, *more]
        return self._transaction.typed_select(row_type, _TEXTS[statement, size], parameters)

    async def first_waiting(self, name: KeyQueueName, limit: int) -> list[int]:
        return self._transaction.ids("first_waiting", *name, limit)

    async def excess(self, name: KeyQueueName, allowed: int) -> list[int]:
        kind, limit_key = name
        return self._transaction.ids("excess", kind=kind, limit_key=limit_key, allowed=allowed)

    async def promote(self, ids: Sequence[int]) -> Sequence[int]:
        """Move tasks from `waiting` to `ready`. Returns all of them: with one writer, none can have changed. RETURNING
        would double the time."""
        self._transaction.run("promote", as_json(ids))
        return ids

    async def promote_all(self, names: Sequence[KeyQueueName]) -> list[ChangedTask]:
        return self._of_names(ChangedTask, "promote_all", names)

    async def demote(self, ids: Sequence[int]) -> list[ChangedTask]:
        return self._transaction.typed(ChangedTask, "demote", as_json(ids))

    async def rates(self, names: Sequence[KeyQueueName]) -> list[RateState]:
        return self._of_names(RateState, "key_queue_rates", names, self._transaction.now)

    async def queue_due(self, name: KeyQueueName, now: int) -> list[ChangedTask]:
        return self._transaction.typed(ChangedTask, "queue_due", *name, now)

    async def postpone(self, moments: Mapping[int, int]) -> list[ChangedTask]:
        return self._transaction.typed(ChangedTask, "postpone", as_json(moments.items()))

    async def set_next_starts(self, moments: Mapping[KeyQueueName, int]) -> None:
        self._transaction.run_each("set_next_start", [(*name, moment) for name, moment in moments.items()])

    async def next_batches(self, names: Sequence[KeyQueueName], size: int) -> list[NextBatch]:
        """Read what each of these key queues has for a batch of this size. Runs one statement for each."""
        found: list[NextBatch] = []
        for kind, limit_key in names:
            found += self._transaction.typed(NextBatch, "next_batch", kind=kind, limit_key=limit_key, size=size)
        return found

    async def set_alarms(self, moments: Mapping[KeyQueueName, int | None]) -> None:
        """Store the moment at which the next batch of each key queue is due. None deletes the stored one."""
        stored = [(*name, moment) for name, moment in moments.items() if moment is not None]
        self._transaction.run_each("set_alarm", stored)
        self._transaction.run_each("delete_alarm", [name for name, moment in moments.items() if moment is None])

    async def due_alarms(self, limit: int) -> list[KeyQueueName]:
        """The key queues whose stored moment has come, earliest first."""
        rows = self._transaction.typed(_NameRow, "due_alarms", self._transaction.now, limit)
        return [(row.kind, row.limit_key) for row in rows]

    async def of_kind(self, kind: str) -> list[KeyQueueName]:
        return [(row.kind, row.limit_key) for row in self._transaction.typed(_NameRow, "key_queues_of_kind", kind=kind)]

    async def of_queue(self, queue: str) -> list[KeyQueueName]:
        return [(row.kind, row.limit_key) for row in self._transaction.typed(_NameRow, "key_queues_of_queue", queue)]

    async def prune_rates(self, limit: int) -> None:
        self._transaction.run("prune_rates", self._transaction.now, limit)
