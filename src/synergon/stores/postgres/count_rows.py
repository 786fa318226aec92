"""Numbers of tasks, in the PostgreSQL store: the primitives of `stores.session.CountRows` with its statements."""

from __future__ import annotations

from typing import Final

import msgspec

from synergon.model.task_records import Counts
from synergon.stores import session as port
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import CountName, KindCount, LiveCount, OldestReady, QueueRow, TaskCount


class CountRows(port.CountRows):
    """Implements `stores.session.CountRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    is_cheap = False

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def live(self) -> Counts[CountName]:
        return _counts(await self._transaction.typed(TaskCount, "live_counts"))

    async def first(self, limit: int) -> Counts[CountName]:
        return _counts(await self._transaction.typed(TaskCount, "first_counts", limit + 1))

    async def final(self) -> Counts[CountName]:
        return _counts(await self._transaction.typed(TaskCount, "final_counts"))

    async def stored(self) -> LiveCount | None:
        found = await self._transaction.typed(LiveCount, "stored_counts")
        return found[0] if found else None

    async def store(self, row: LiveCount) -> None:
        numbers = msgspec.json.encode(row.numbers).decode()
        await self._transaction.run("store_counts", row.counted_at, numbers)

    async def queues(self) -> list[QueueRow]:
        return await self._transaction.typed(QueueRow, "queues")

    async def oldest_ready(self) -> list[OldestReady]:
        return await self._transaction.typed(OldestReady, "oldest_ready")

    async def failures(self, age: int, limit: int) -> list[KindCount]:
        return await self._transaction.typed(KindCount, "failures", age, limit)

    async def overdue(self) -> int:
        number: int = await self._transaction.value("overdue")
        return number


def _counts(rows: list[TaskCount]) -> Counts[CountName]:
    return Counts({(row.queue, row.kind, row.state): row.count for row in rows})
