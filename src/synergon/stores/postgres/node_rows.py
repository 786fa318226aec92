"""Nodes in the PostgreSQL store. A lease is measured by the clock of the database."""

from __future__ import annotations

from collections.abc import Sequence

from synergon.stores.sql_rows.node_rows import NodeRows as SqlNodeRows


class NodeRows(SqlNodeRows):
    """Adapts `stores.sql_rows.node_rows` to the leases of the PostgreSQL store."""

    __slots__ = ()

    async def lock_lease(self, node_id: str) -> bool | None:
        """Whether the lease of a node is live; None if the node has no row. Locks the row: waits for claims of the
        node, and blocks new ones."""
        has_lease: bool | None = await self._sql.value("lock_lease", node_id)
        return has_lease

    async def lock_dead(self, gone: Sequence[str]) -> list[str]:
        return [row["id"] for row in await self._sql.rows("lock_dead", list(gone))]

    async def runners(self, kind: str, queue: str) -> list[str]:
        return [row["id"] for row in await self._sql.rows("runners", kind, queue)]
