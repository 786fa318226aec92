"""Queues in the PostgreSQL store."""

from __future__ import annotations

from typing import Final

from synergon.stores.postgres.transaction import Transaction


class QueueRows:
    """`stores.session.QueueRows`."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def pause(self, queue: str) -> bool:
        """Close a queue."""
        return await self._transaction.run("pause_queue", queue) == 1

    async def resume(self, queue: str) -> bool:
        """Open a queue."""
        return await self._transaction.run("resume_queue", queue) == 1
