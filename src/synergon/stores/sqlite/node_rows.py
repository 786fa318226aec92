"""Nodes and their leases in the SQLite store: implements `stores.session.NodeRows` with the statements of
`sql/nodes.sql`.

Leases are measured by the host's monotonic clock, which all processes of one boot share. So a step of the wall clock
ends no lease, and a lease from before a reboot has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from synergon.stores import session as port
from synergon.stores.rows import NodeName
from synergon.stores.sqlite.transaction import Transaction, as_json, lease_remaining


class Lease(msgspec.Struct, frozen=True):
    """The lease of a node."""

    id: str
    leased_until: int
    lease: int
    boot_id: str

    @property
    def left(self) -> int:
        """Microseconds until the lease ends. Zero or negative if it has ended."""
        return lease_remaining(self.leased_until, self.lease, self.boot_id)


class NodeRows(port.NodeRows):
    """Implements `stores.session.NodeRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def lock_lease(self, node_id: str) -> bool | None:
        """Whether the lease of a node is live; None if the node has no row. Needs no lock: the transaction holds the
        write lock of the file."""
        found = self._transaction.typed(Lease, "lease", node_id)
        return found[0].left > 0 if found else None

    async def cordon(self, node_id: str) -> None:
        self._transaction.run("cordon", self._transaction.now, node_id)

    async def uncordon(self, node_id: str) -> None:
        self._transaction.run("uncordon", node_id)

    async def lock_dead(self, gone: Sequence[str]) -> list[str]:
        leases = self._transaction.typed(Lease, "leases")
        return [lease.id for lease in leases if lease.left <= 0 or lease.id in gone]

    async def runners(self, kind: str, queue: str) -> list[str]:
        leases = self._transaction.typed(Lease, "runners", kind=kind, queue=queue)
        return [lease.id for lease in leases if lease.left > 0]

    async def names(self, ids: Collection[str]) -> dict[str, NodeName]:
        return {node.id: node for node in self._transaction.typed(NodeName, "node_names", as_json(ids))}

    async def delete_idle(self, dead: Collection[str]) -> None:
        if dead:
            self._transaction.run("delete_idle_nodes", as_json(dead))
