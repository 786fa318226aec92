"""Nodes and their leases, in the PostgreSQL store: the primitives of `stores.session.NodeRows` with its statements."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from synergon.stores.postgres.transaction import Transaction


class NodeRows:
    """Implements `stores.session.NodeRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def lock_lease(self, node_id: str) -> bool | None:
        """Whether the lease of a node is live. The lock waits for claims of the node, and blocks new ones."""
        has_lease: bool | None = await self._transaction.value("lock_lease", node_id)
        return has_lease

    async def cordon(self, node_id: str) -> None:
        """Mark the node as cordoned: it may claim nothing."""
        await self._transaction.run("cordon", node_id)

    async def uncordon(self, node_id: str) -> None:
        """Remove the cordon mark: the node may claim again."""
        await self._transaction.run("uncordon", node_id)

    async def lock_dead(self, gone: Sequence[str]) -> list[str]:
        """The nodes whose lease has ended, and those of `gone`."""
        return [row["id"] for row in await self._transaction.rows("lock_dead", list(gone))]

    async def delete_idle(self, dead: Collection[str]) -> None:
        """Delete the dead nodes of this list that hold no running task."""
        if dead:
            await self._transaction.run("delete_idle_nodes", list(dead))
