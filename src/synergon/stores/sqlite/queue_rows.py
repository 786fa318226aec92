"""Queues in SQLite."""

from __future__ import annotations

from synergon.stores.sqlite.transaction import Transaction


class QueueRows:
    """The primitives of `stores.session.QueueRows`."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def pause(self, queue: str) -> bool:
        """Close a queue."""
        return self._transaction.run("pause_queue", queue, self._transaction.now) == 1

    async def resume(self, queue: str) -> bool:
        """Open a queue."""
        return self._transaction.run("resume_queue", queue) == 1
