"""Registers nodes in the PostgreSQL store, and renews their leases on a connection that no other call uses."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec

from synergon.model.nodes import NewNode
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.connection import FIX_PATH, Connections, connect
from synergon.stores.postgres.errors import translated
from synergon.stores.postgres.session import Session


async def register(session: Session, node: NewNode) -> None:
    """Insert the row of a node, with a lease from now."""
    await session.run(
        "register",
        node.id,
        node.name,
        msgspec.json.encode(node.process).decode(),
        list(node.kinds),
        list(node.queues) if node.queues is not None else None,
        node.concurrency,
        node.version,
        node.address,
        node.lease,
        node.is_cordoned,
        node.published.decode(),
    )


class ConnectionLeaseKeeper:
    """Renews leases on a connection of its own. Reconnects if the connection is lost."""

    def __init__(self, address: Address, renew_sql: str, connections: Connections) -> None:
        self._address = address
        self._renew_sql = renew_sql
        self._connections = connections
        self._connection: asyncpg.Connection[Any] | None = None

    async def renew(self, node_id: str, lease: int, published: bytes | None = None) -> bool:
        """Extend the lease of a node. False if it has no row."""
        says = published.decode() if published is not None else None
        self._connections.check_open()
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._address)
        try:
            with translated(self._address):
                # Behind a pooler only the statements of one transaction reach one server.
                await self._connection.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED; {FIX_PATH}")
                status: str = await self._connection.execute(self._renew_sql, node_id, lease, says)
                await self._connection.execute("COMMIT")
        except BaseException:
            # After any error, a cancellation too, the next renewal has a better chance on a new connection. Nothing is
            # rolled back first, because that would wait for this server.
            self._connection.terminate()
            raise
        return status == "UPDATE 1"

    async def close(self) -> None:
        """Cut the connection."""
        if self._connection is not None:
            self._connection.terminate()
