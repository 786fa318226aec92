"""Queues in the PostgreSQL store: implements `stores.session.QueueRows` with the statements of `sql/operations.sql`."""

from __future__ import annotations

from typing import Final

from synergon.stores import session as port
from synergon.stores.postgres.transaction import Transaction


class QueueRows(port.QueueRows):
    """Implements `stores.session.QueueRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def pause(self, queue: str) -> bool:
        return await self._transaction.run("pause_queue", queue) == 1

    async def resume(self, queue: str) -> bool:
        return await self._transaction.run("resume_queue", queue) == 1
