"""Nodes in the SQLite store. A lease is measured by the monotonic clock of the host, which SQL cannot read."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from synergon.stores.sql_rows.node_rows import NodeRows as SqlNodeRows
from synergon.stores.sqlite.transaction import lease_remaining


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


class NodeRows(SqlNodeRows):
    """Adapts `stores.sql_rows.node_rows` to the leases of the SQLite store."""

    __slots__ = ()

    async def lock_lease(self, node_id: str) -> bool | None:
        """Whether the lease of a node is live; None if the node has no row. Needs no lock: the transaction holds the
        write lock of the file."""
        found = await self._sql.typed(Lease, "lease", node_id)
        return found[0].left > 0 if found else None

    async def lock_dead(self, gone: Sequence[str]) -> list[str]:
        leases = await self._sql.typed(Lease, "leases")
        return [lease.id for lease in leases if lease.left <= 0 or lease.id in gone]

    async def runners(self, kind: str, queue: str) -> list[str]:
        leases = await self._sql.typed(Lease, "runners", kind, queue)
        return [lease.id for lease in leases if lease.left > 0]
