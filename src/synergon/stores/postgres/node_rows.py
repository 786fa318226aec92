"""Nodes and their leases in the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from synergon.stores.postgres.transaction import Transaction
from synergon.stores.session import DeadNode


class NodeRows:
    """`stores.session.NodeRows`."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def lock_lease(self, node_id: str) -> bool | None:
        """Whether the lease is live; the lock waits for claims of the node, and keeps out further ones."""
        has_lease: bool | None = await self._transaction.value("lock_lease", node_id)
        return has_lease

    async def cordon(self, node_id: str) -> None:
        """The node may claim nothing."""
        await self._transaction.run("cordon", node_id)

    async def uncordon(self, node_id: str) -> None:
        """The node may claim again."""
        await self._transaction.run("uncordon", node_id)

    async def lock_dead(self, gone: Sequence[str]) -> list[DeadNode]:
        """Nodes whose lease is over, and those of `gone`."""
        return await self._transaction.typed(DeadNode, "lock_dead", list(gone))

    async def delete_idle(self, dead: Collection[str]) -> None:
        """Delete dead nodes that hold no running task."""
        if dead:
            await self._transaction.run("delete_idle_nodes", list(dead))
