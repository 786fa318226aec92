"""Registers nodes in the SQLite store, renews their leases, and reads them as records."""

from __future__ import annotations

from typing import Any

import msgspec

from synergon.model.nodes import NewNode, NodeRecord, ProcessIdentity
from synergon.model.record import to_datetime
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


def nodes(transaction: Transaction) -> list[NodeRecord]:
    """All registered nodes, including dead ones that are not reaped yet."""
    return [_record(*row) for row in transaction.rows("nodes")]


def _record(
    node_id: str,
    name: str,
    process: bytes,
    boot_id: str,
    kinds: bytes,
    queues: bytes,
    concurrency: int,
    version: str,
    address: str | None,
    registered_at: int,
    leased_until: int,
    lease: int,
    cordoned_at: int | None,
    published: bytes,
    published_at: int,
) -> NodeRecord:
    decode: Any = msgspec.json.decode
    return NodeRecord(
        id=node_id,
        name=name,
        process=decode(process, type=ProcessIdentity),
        kinds=decode(kinds, type=tuple[str, ...]),
        queues=decode(queues, type=tuple[str, ...] | None),
        concurrency=concurrency,
        version=version,
        address=address,
        registered_at=to_datetime(registered_at),
        lease_remaining=lease_remaining(leased_until, lease, boot_id) / 1_000_000,
        cordoned_at=to_datetime(cordoned_at) if cordoned_at is not None else None,
        published=msgspec.Raw(published),
        published_ago=max(steady_now() - published_at, 0) / 1_000_000,
    )
