"""Nodes and their leases in the memory store: implements `stores.session.NodeRows` over the store's tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class NodeRows:
    """Implements `stores.session.NodeRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._tables: Final = session.tables

    async def lock_lease(self, node_id: str) -> bool | None:
        """Whether the lease of a node is live. None if the node has no row."""
        return self._tables.is_leased(node_id, self._session.now) if node_id in self._tables.nodes else None

    async def cordon(self, node_id: str) -> None:
        """Mark the node as cordoned: it may claim nothing."""
        node = self._tables.nodes[node_id]
        if node.cordoned_at is None:
            node.cordoned_at = self._session.now

    async def uncordon(self, node_id: str) -> None:
        """Remove the cordon mark: the node may claim again."""
        self._tables.nodes[node_id].cordoned_at = None

    async def lock_dead(self, gone: Sequence[str]) -> list[str]:
        """The nodes whose lease has ended, and those of `gone`."""
        now, nodes = self._session.now, self._tables.nodes
        return [node_id for node_id in nodes if node_id in gone or not self._tables.is_leased(node_id, now)]

    async def runners(self, kind: str, queue: str) -> list[str]:
        """The ids of the nodes with a live lease that run the kind and serve the queue."""
        now, tables = self._session.now, self._tables
        return [
            node_id
            for node_id, node in tables.nodes.items()
            if tables.is_leased(node_id, now)
            and kind in node.registered.kinds
            and (node.registered.queues is None or queue in node.registered.queues)
        ]

    async def delete_idle(self, dead: Collection[str]) -> None:
        """Delete the nodes of this list that hold no running task."""
        nodes, running = self._tables.nodes, self._tables.running
        for node_id in dead:
            if not running.get(node_id):
                nodes.pop(node_id, None)
        for node_id in [node_id for node_id, rows in running.items() if not rows and node_id not in nodes]:
            del running[node_id]
