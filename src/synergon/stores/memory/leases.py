"""Registers nodes in the memory store, renews their leases, and reads them as records."""

from __future__ import annotations

import msgspec

from synergon.model.nodes import NewNode, NodeRecord
from synergon.model.record import to_datetime
from synergon.stores.memory.entries import Node
from synergon.stores.memory.tables import Tables


def register(tables: Tables, new: NewNode, now: int) -> None:
    """Insert a node, with a lease from now."""
    tables.nodes[new.id] = Node(
        new,
        registered_at=now,
        leased_until=now + new.lease,
        cordoned_at=now if new.is_cordoned else None,
        published=new.published,
        published_at=now,
    )


def renew(tables: Tables, node_id: str, lease: int, published: bytes | None, now: int) -> bool:
    """Extend the lease of a node and store its status. False if the node is not registered."""
    node = tables.nodes.get(node_id)
    if node is None:
        return False
    node.leased_until = now + lease
    if published is not None:
        node.published, node.published_at = published, now
    return True


def nodes(tables: Tables, now: int) -> list[NodeRecord]:
    """All registered nodes, including dead ones that are not reaped yet."""
    return [_record(node, now) for node in tables.nodes.values()]


def _record(node: Node, now: int) -> NodeRecord:
    registered = node.registered
    return NodeRecord(
        id=registered.id,
        name=registered.name,
        process=registered.process,
        kinds=registered.kinds,
        queues=registered.queues,
        concurrency=registered.concurrency,
        version=registered.version,
        address=registered.address,
        registered_at=to_datetime(node.registered_at),
        lease_remaining=(node.leased_until - now) / 1_000_000,
        cordoned_at=None if node.cordoned_at is None else to_datetime(node.cordoned_at),
        published=msgspec.Raw(node.published),
        published_ago=(now - node.published_at) / 1_000_000,
    )
