"""Numbers of tasks, in the SQLite store: the primitives of `stores.session.CountRows` with its statements."""

from __future__ import annotations

from typing import Final

import msgspec

from synergon.model.task_records import Counts
from synergon.stores import session as port
from synergon.stores.rows import CountName, KindCount, LiveCount, OldestReady, QueueRow, TaskCount
from synergon.stores.sqlite.transaction import Transaction


class CountRows(port.CountRows):
    """Implements `stores.session.CountRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    is_cheap = False

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def live(self) -> Counts[CountName]:
        return _counts(self._transaction.typed(TaskCount, "live_counts"))

    async def first(self, limit: int) -> Counts[CountName]:
        return _counts(self._transaction.typed(TaskCount, "first_counts", limit=limit + 1))

    async def final(self) -> Counts[CountName]:
        return _counts(self._transaction.typed(TaskCount, "final_counts"))

    async def stored(self) -> LiveCount | None:
        found = self._transaction.typed(LiveCount, "stored_counts")
        return found[0] if found else None

    async def store(self, row: LiveCount) -> None:
        numbers = msgspec.json.encode(row.numbers)
        self._transaction.run("store_counts", row.counted_at, numbers)

    async def queues(self) -> list[QueueRow]:
        return self._transaction.typed(QueueRow, "queues")

    async def oldest_ready(self) -> list[OldestReady]:
        oldest: dict[tuple[str, str], int] = {}
        for (kind,) in self._transaction.rows("ready_kinds"):
            for queue, requirements in self._transaction.rows("groups_of_kind", kind=kind):
                (due_at,) = self._transaction.row("oldest_of_group", kind=kind, queue=queue, requirements=requirements)
                if due_at is not None:
                    oldest[queue, kind] = min(due_at, oldest.get((queue, kind), due_at))
        return [OldestReady(queue, kind, due_at) for (queue, kind), due_at in oldest.items()]

    async def failures(self, age: int, limit: int) -> list[KindCount]:
        return self._transaction.typed(KindCount, "failures", self._transaction.now - age, limit)

    async def overdue(self) -> int:
        (number,) = self._transaction.row("overdue")
        return int(number)


def _counts(rows: list[TaskCount]) -> Counts[CountName]:
    return Counts({(row.queue, row.kind, row.state): row.count for row in rows})
