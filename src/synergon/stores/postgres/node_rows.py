"""Nodes and their leases in the PostgreSQL store: implements `stores.session.NodeRows` with the statements of
`sql/nodes.sql` and `sql/operator_actions.sql`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from synergon.stores import session as port
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import NodeName


class NodeRows(port.NodeRows):
    """Implements `stores.session.NodeRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def lock_lease(self, node_id: str) -> bool | None:
        """Whether the lease of a node is live; None if the node has no row. Locks the row: waits for claims of the
        node, and blocks new ones."""
        has_lease: bool | None = await self._transaction.value("lock_lease", node_id)
        return has_lease

    async def cordon(self, node_id: str) -> None:
        await self._transaction.run("cordon", node_id)

    async def uncordon(self, node_id: str) -> None:
        await self._transaction.run("uncordon", node_id)

    async def lock_dead(self, gone: Sequence[str]) -> list[str]:
        return [row["id"] for row in await self._transaction.rows("lock_dead", list(gone))]

    async def runners(self, kind: str, queue: str) -> list[str]:
        return [row["id"] for row in await self._transaction.rows("runners", kind, queue)]

    async def names(self, ids: Collection[str]) -> dict[str, NodeName]:
        return {node.id: node for node in await self._transaction.typed(NodeName, "node_names", list(ids))}

    async def delete_idle(self, dead: Collection[str]) -> None:
        if dead:
            await self._transaction.run("delete_idle_nodes", list(dead))
