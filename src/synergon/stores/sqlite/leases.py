"""Registers nodes in the SQLite store, renews their leases, and reads them as records."""

from __future__ import annotations

from datetime import datetime

import msgspec

from synergon.model.nodes import NewNode, NodeRecord, ProcessIdentity
from synergon.model.record import Record
from synergon.stores.sqlite.transaction import Transaction, lease_remaining, steady_now


def register(transaction: Transaction, node: NewNode) -> None:
    """Insert the row of a node, with a lease from now."""
    transaction.run(
        "register",
        node.id,
        node.name,
        msgspec.json.encode(node.process),
        node.process.boot_id,
        msgspec.json.encode(node.kinds),
        msgspec.json.encode(node.queues),
        node.concurrency,
        node.version,
        node.address,
        transaction.now,
        steady_now() + node.lease,
        node.lease,
        transaction.now if node.is_cordoned else None,
        node.published,
        steady_now(),
    )


def renew(transaction: Transaction, node_id: str, lease: int, published: bytes | None) -> bool:
    """Extend the lease of a node and store its status. False if the node has no row."""
    now = steady_now()
    renewed = transaction.run(
        "renew",
        leased_until=now + lease,
        lease=lease,
        published=published,
        now=now,
        id=node_id,
    )
    return renewed == 1


class NodeRow(Record, frozen=True, kw_only=True):
    """The row of a node."""

    id: str
    name: str
    process: ProcessIdentity
    boot_id: str
    kinds: tuple[str, ...]
    queues: tuple[str, ...] | None
    concurrency: int
    version: str
    address: str | None
    registered_at: datetime
    leased_until: int
    lease: int
    cordoned_at: datetime | None
    published: msgspec.Raw
    published_at: int

    @property
    def record(self) -> NodeRecord:
        """The node as users see it."""
        return NodeRecord(
            id=self.id,
            name=self.name,
            process=self.process,
            kinds=self.kinds,
            queues=self.queues,
            concurrency=self.concurrency,
            version=self.version,
            address=self.address,
            registered_at=self.registered_at,
            lease_remaining=lease_remaining(self.leased_until, self.lease, self.boot_id) / 1_000_000,
            cordoned_at=self.cordoned_at,
            published=self.published,
            published_ago=max(steady_now() - self.published_at, 0) / 1_000_000,
        )


def nodes(transaction: Transaction) -> list[NodeRecord]:
    """All registered nodes that can be read."""
    return [row.record for row in transaction.typed(NodeRow, "nodes")]
