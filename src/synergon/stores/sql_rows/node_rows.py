"""Nodes: implements `stores.session.NodeRows` with the statements of `sql/nodes.sql`, except for leases, which each
store measures by its own clock."""

from __future__ import annotations

from collections.abc import Collection

from synergon.stores import session as port
from synergon.stores.rows import NodeName
from synergon.stores.sql_rows.named_statements import SqlRows


class NodeRows(SqlRows, port.NodeRows):
    """Implements `stores.session.NodeRows`, without leases."""

    __slots__ = ()

    async def cordon(self, node_id: str) -> None:
        await self._sql.run("cordon", node_id)

    async def uncordon(self, node_id: str) -> None:
        await self._sql.run("uncordon", node_id)

    async def names(self, ids: Collection[str]) -> dict[str, NodeName]:
        return {node.id: node for node in await self._sql.typed(NodeName, "node_names", list(ids))}

    async def prune_names(self, age: int, limit: int) -> None:
        await self._sql.run("prune_node_names", age, limit)

    async def delete_idle(self, dead: Collection[str]) -> None:
        if dead:
            await self._sql.run("keep_node_names", list(dead))
            await self._sql.run("delete_idle_nodes", list(dead))
