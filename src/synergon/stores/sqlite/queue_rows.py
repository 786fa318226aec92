"""Queues in the SQLite store: implements `stores.session.QueueRows` with the statements of `sql/operations.sql`."""

from __future__ import annotations

from synergon.stores import session as port
from synergon.stores.sqlite.transaction import Transaction


class QueueRows(port.QueueRows):
    """Implements `stores.session.QueueRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def pause(self, queue: str) -> bool:
        return self._transaction.run("pause_queue", queue, self._transaction.now) == 1

    async def resume(self, queue: str) -> bool:
        return self._transaction.run("resume_queue", queue) == 1
