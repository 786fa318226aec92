"""Key queues in the SQLite store: passes kind and limit key of each key queue as two parameters, and pads lists of key
queues to a few fixed lengths."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, Final

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
from synergon.stores.sql_rows.key_queue_rows import KeyQueueRows as SqlKeyQueueRows
from synergon.stores.sqlite.transaction import SQL, Statements, as_json
from synergon.stores.typed_rows import Row

SIZES: Final = (1, 4, 16, 64, 256, KEY_QUEUES_AT_ONCE)
"""A list of key queues is padded with NULLs to one of these lengths, so that few statements have to be prepared. The
names are parameters and not JSON, because SQLite cuts a JSON string at a zero byte."""

_TEXTS: Final = {
    (name, size): SQL[name].replace("{names}", ", ".join(["(?, ?)"] * size))
    for name in ("key_queue_counts", "key_queue_rates", "promote_all")
    for size in SIZES
}


class KeyQueueRows(SqlKeyQueueRows):
    """Adapts `stores.sql_rows.key_queue_rows` to the SQLite store."""

    __slots__ = ()
    _sql: Statements

    async def limits(self, kinds: Collection[str]) -> dict[str, KeyQueueLimit]:
        """Read the limits `key:<kind>` of these kinds. A kind without a limit gets `KeyQueueLimit()`."""
        return {kind: self._limit(kind) for kind in kinds}

    def _limit(self, kind: str) -> KeyQueueLimit:
        for row in self._sql.transaction.typed(LimitRow, "key_queue_limit", kind):
            return row.of_key_queues
        return KeyQueueLimit()

    async def counts(self, names: Sequence[KeyQueueName], few: int) -> list[KeyQueueCounts]:
        return self._of_names(KeyQueueCounts, "key_queue_counts", names, few)

    def _of_names(self, row_type: type[Row], statement: str, names: Sequence[KeyQueueName], *more: int) -> list[Row]:
        """The rows of a statement that takes a list of key queue names, and perhaps other parameters."""
        size = next(size for size in SIZES if size >= len(names))
        padding: list[Any] = [None] * (2 * (size - len(names)))
        parameters = [*chain.from_iterable(names), *padding, *more]
        return self._sql.transaction.typed_select(row_type, _TEXTS[statement, size], parameters)

    async def promote(self, ids: Sequence[int]) -> Sequence[int]:
        """Move tasks from `waiting` to `ready`. Returns all `ids`: with one writer, no task can have changed. RETURNING
        would double the time."""
        self._sql.transaction.run("promote", as_json(ids))
        return ids

    async def promote_all(self, names: Sequence[KeyQueueName]) -> list[ChangedTask]:
        return self._of_names(ChangedTask, "promote_all", names)

    async def rates(self, names: Sequence[KeyQueueName]) -> list[RateState]:
        return self._of_names(RateState, "key_queue_rates", names, self._sql.transaction.now)

    async def next_batches(self, names: Sequence[KeyQueueName], size: int) -> list[NextBatch]:
        """Count the tasks that each of these key queues has for a batch of `size` tasks. Runs one statement for each
        key queue."""
        found: list[NextBatch] = []
        for kind, limit_key in names:
            found += self._sql.transaction.typed(NextBatch, "next_batch", kind=kind, limit_key=limit_key, size=size)
        return found
