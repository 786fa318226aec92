"""Numbers of tasks: implements `stores.session.CountRows` with the statements of `sql/operations.sql`."""

from __future__ import annotations

import msgspec

from synergon.model.task_records import Counts
from synergon.stores import session as port
from synergon.stores.rows import CountName, KindCount, LiveCount, OldestReady, QueueRow, TaskCount
from synergon.stores.sql_rows.named_statements import SqlRows


class CountRows(SqlRows, port.CountRows):
    """Implements `stores.session.CountRows`."""

    __slots__ = ()

    is_cheap = False

    async def live(self) -> Counts[CountName]:
        return _counts(await self._sql.typed(TaskCount, "live_counts"))

    async def first(self, limit: int) -> Counts[CountName]:
        return _counts(await self._sql.typed(TaskCount, "first_counts", limit + 1))

    async def final(self) -> Counts[CountName]:
        return _counts(await self._sql.typed(TaskCount, "final_counts"))

    async def stored(self) -> LiveCount | None:
        found = await self._sql.typed(LiveCount, "stored_counts")
        return found[0] if found else None

    async def store(self, row: LiveCount) -> None:
        await self._sql.run("store_counts", row.counted_at, msgspec.json.encode(row.numbers).decode())

    async def queues(self) -> list[QueueRow]:
        return await self._sql.typed(QueueRow, "queues")

    async def oldest_ready(self) -> list[OldestReady]:
        return await self._sql.typed(OldestReady, "oldest_ready")

    async def failures(self, age: int, limit: int) -> list[KindCount]:
        return await self._sql.typed(KindCount, "failures", age, limit)

    async def overdue(self) -> int:
        number: int = await self._sql.value("overdue")
        return number


def _counts(rows: list[TaskCount]) -> Counts[CountName]:
    return Counts({(row.queue, row.kind, row.state): row.count for row in rows})
