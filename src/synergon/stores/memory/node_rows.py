"""Nodes and their leases in the memory store: implements `stores.session.NodeRows` over the store's tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from synergon.stores import session as port
from synergon.stores.rows import NodeName

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class NodeRows(port.NodeRows):
    """Implements `stores.session.NodeRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._tables: Final = session.tables

    async def lock_lease(self, node_id: str) -> bool | None:
        """Whether the lease of a node is live. None if the node has no row."""
        return self._tables.is_leased(node_id, self._session.now) if node_id in self._tables.nodes else None

    async def cordon(self, node_id: str) -> None:
        node = self._tables.nodes[node_id]
        if node.cordoned_at is None:
            node.cordoned_at = self._session.now

    async def uncordon(self, node_id: str) -> None:
        self._tables.nodes[node_id].cordoned_at = None

    async def lock_dead(self, gone: Sequence[str]) -> list[str]:
        now, nodes = self._session.now, self._tables.nodes
        return [node_id for node_id in nodes if node_id in gone or not self._tables.is_leased(node_id, now)]

    async def runners(self, kind: str, queue: str) -> list[str]:
        now, tables = self._session.now, self._tables
        return [
            node_id
            for node_id, node in tables.nodes.items()
            if tables.is_leased(node_id, now)
            and kind in node.registered.kinds
            and (node.registered.queues is None or queue in node.registered.queues)
        ]

    async def names(self, ids: Collection[str]) -> dict[str, NodeName]:
        nodes = self._tables.nodes
        found = [nodes[node_id].registered for node_id in ids if node_id in nodes]
        return {node.id: NodeName(node.id, node.name, node.process) for node in found}

    async def delete_idle(self, dead: Collection[str]) -> None:
        nodes, running = self._tables.nodes, self._tables.running
        for node_id in dead:
            if not running.get(node_id):
                nodes.pop(node_id, None)
        for node_id in [node_id for node_id, rows in running.items() if not rows and node_id not in nodes]:
            del running[node_id]
