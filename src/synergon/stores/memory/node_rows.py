"""Nodes and their leases in the memory store: implements `stores.session.NodeRows` over the store's tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from synergon.stores import session as port
from synergon.stores.memory.entries import Node
from synergon.stores.memory.tables import Tables
from synergon.stores.rows import NodeName

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


def node_name(node: Node) -> NodeName:
    """The name of a node, and its process."""
    registered = node.registered
    return NodeName(registered.id, registered.name, registered.process)


def delete_node(tables: Tables, node_id: str, now: int) -> None:
    """Delete the row of a node, and keep its name."""
    node = tables.nodes.pop(node_id, None)
    if node is not None:
        tables.past_nodes[node_id] = (node_name(node), now)


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
        nodes, past = self._tables.nodes, self._tables.past_nodes
        found = {node_id: past[node_id][0] for node_id in ids if node_id in past}
        return found | {node_id: node_name(nodes[node_id]) for node_id in ids if node_id in nodes}

    async def prune_names(self, age: int, limit: int) -> None:
        past = self._tables.past_nodes
        for node_id, (_, gone_at) in list(islice(past.items(), limit)):
            if gone_at < self._session.now - age:
                del past[node_id]

    async def delete_idle(self, dead: Collection[str]) -> None:
        nodes, running = self._tables.nodes, self._tables.running
        for node_id in dead:
            if not running.get(node_id):
                delete_node(self._tables, node_id, self._session.now)
        for node_id in [node_id for node_id, rows in running.items() if not rows and node_id not in nodes]:
            del running[node_id]
