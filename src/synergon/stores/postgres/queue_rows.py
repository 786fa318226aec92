"""Queues in the PostgreSQL store: implements `stores.session.QueueRows` with the statements of `sql/operations.sql`."""

from __future__ import annotations

from typing import Final

from synergon.stores.postgres.transaction import Transaction


class QueueRows:
    """Implements `stores.session.QueueRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def pause(self, queue: str) -> bool:
        """Pause a queue, and insert it if it is new. False if it was paused already."""
        return await self._transaction.run("pause_queue", queue) == 1

    async def resume(self, queue: str) -> bool:
        """Resume a queue. False if it was not paused, or does not exist."""
        return await self._transaction.run("resume_queue", queue) == 1
