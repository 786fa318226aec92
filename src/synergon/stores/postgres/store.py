"""The PostgreSQL store: READ COMMITTED, no advisory locks, correctness by guards in the statements."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg
import msgspec

from synergon.errors import NotAvailable
from synergon.lifecycle import State
from synergon.records import (
    Claim,
    ClaimRequest,
    Cutoffs,
    Insertion,
    Moved,
    NewNode,
    NewTask,
    NodeRecord,
    QueueRecord,
    Reaped,
    Report,
    Reprioritizing,
    Rescheduling,
    Settlement,
    TaskPage,
    TaskQuery,
    TaskRecord,
    Verdict,
    Woken,
    from_datetime,
)
from synergon.stores.base import BodyTransaction, Capabilities
from synergon.stores.postgres import claiming, inserting, operating, reading, schema, settling
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.connection import Connections, connect, translated
from synergon.stores.postgres.gathering import Gathering
from synergon.stores.postgres.session import Session
from synergon.stores.sql import statements

Result = TypeVar("Result")
SHARDS = 64


class PostgresStore:
    """One schema of one database."""

    capabilities = Capabilities(shared=True, durable=True, transactions=True)

    def __init__(self, url: str) -> None:
        self.url = url
        self.address = Address.parse(url)
        self._sql = statements("postgres", self.address.schema)
        self._shard = random.randrange(SHARDS)
        self._connections = Connections(self.address)
        self._gathering = Gathering(self._insert_plain)

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        """Connect, and create or migrate the tables if the role may."""
        await schema.prepare(self.address)
        await self._connections.open()

    async def close(self) -> None:
        """Finish the calls under way, then disconnect."""
        await self._connections.close()

    async def _write(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        async with self._connections.transaction() as connection:
            session = Session(connection, self._sql, self._shard)
            result = await work(session, *arguments)
            await session.flush()
            return result

    async def _read(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        async with self._connections.use() as connection:
            return await work(Session(connection, self._sql, self._shard), *arguments)

    async def now(self) -> int:
        """The store's clock."""
        return from_datetime(await self._read(lambda session: session.value("now")))

    # ------------------------------------------------------------ tasks come in

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store all of `tasks` or none."""
        if all(task.key is None for task in tasks):
            return await self._gathering.insert(tasks)
        return await self._write(inserting.insert, tasks)

    async def _insert_plain(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        return await self._write(inserting.insert, tasks)

    def insert_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert inside the caller's own transaction."""
        raise NotAvailable("conn= is not available on postgresql:// in this release of synergon")

    # ------------------------------------------------------------ tasks run

    async def claim(self, request: ClaimRequest) -> list[Claim]:
        """Take ready tasks; one statement."""
        return await self._read(claiming.claim, request)

    async def finish(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """Settle attempts."""
        return await self._write(settling.finish, settlements)

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        """Write notes of running attempts."""
        return await self._write(settling.report, reports)

    async def begin(self, hold_seconds: float) -> BodyTransaction:
        """A transaction for a body."""
        raise NotAvailable("ctx.transaction() is not available on postgresql:// in this release of synergon")

    async def cancel_requests(self, node_id: str) -> list[int]:
        """Running tasks of this node that somebody wants cancelled."""
        rows = await self._read(lambda session: session.rows("cancel_requests", node_id))
        return [row["id"] for row in rows]

    # ------------------------------------------------------------ time and death

    async def wake(self, limit: int) -> Woken:
        """Make due tasks ready and end expired ones."""
        return await self._write(operating.wake, limit)

    async def reap(self, gone: Sequence[str], limit: int) -> list[Reaped]:
        """Take running tasks from the dead."""
        return await self._write(operating.reap, gone, limit)

    async def prune(self, cutoffs: Cutoffs, limit: int) -> int:
        """Forget what ended long ago."""
        return await self._write(operating.prune, cutoffs, limit)

    # ------------------------------------------------------------ nodes

    async def register(self, node: NewNode) -> None:
        """Make the node known."""
        await self._write(
            lambda session: session.run(
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
            )
        )

    async def keeper(self) -> ConnectionLeaseKeeper:
        """A path for renewing leases: a connection of its own."""
        return ConnectionLeaseKeeper(self.address, self._sql["renew"])

    async def unregister(self, node_id: str) -> None:
        """Forget the node."""
        await self._write(lambda session: session.run("unregister", node_id))

    async def nodes(self) -> list[NodeRecord]:
        """All registered nodes."""
        return await self._read(reading.nodes)

    # ------------------------------------------------------------ operations

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """End what waits, ask what runs."""
        return await self._write(operating.cancel, ids, why)

    async def retry(self, ids: Sequence[int]) -> list[Moved]:
        """Bring ended tasks back."""
        return await self._write(operating.retry, ids)

    async def delete(self, ids: Sequence[int]) -> list[Moved]:
        """Remove what does not run."""
        return await self._write(operating.delete, ids)

    async def reschedule(self, changes: Sequence[Rescheduling]) -> list[Moved]:
        """Change when tasks are due."""
        return await self._write(operating.reschedule, changes)

    async def set_priority(self, changes: Sequence[Reprioritizing]) -> list[Moved]:
        """Change the order."""
        return await self._write(operating.set_priority, changes)

    async def pause(self, queues: Sequence[str]) -> list[bool]:
        """Close queues."""
        return await self._write(operating.pause, queues)

    async def resume(self, queues: Sequence[str]) -> list[bool]:
        """Open queues again."""
        return await self._write(operating.resume, queues)

    # ------------------------------------------------------------ reading

    async def get(self, ids: Sequence[int]) -> list[TaskRecord | None]:
        """These tasks, live or final."""
        return await self._snapshot(reading.get, ids)

    async def list_tasks(self, query: TaskQuery) -> TaskPage:
        """One page, newest first."""
        async with self._connections.use() as connection, connection.transaction(isolation="repeatable_read"):
            return await reading.list_tasks(connection, self.address.schema, query)

    async def counts(self) -> dict[tuple[str, str, State], int]:
        """Exact numbers by queue, kind and state."""
        return await self._snapshot(reading.counts)

    async def queues(self) -> list[QueueRecord]:
        """All queues with their numbers."""
        return await self._snapshot(reading.queues)

    async def _snapshot(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """A task moves from one table to another; only one snapshot of both never misses it."""
        async with self._connections.use() as connection, connection.transaction(isolation="repeatable_read"):
            return await work(Session(connection, self._sql, self._shard), *arguments)

    async def describe(self) -> dict[str, str]:
        """Facts for people."""
        async with self._connections.use() as connection:
            return {
                "server": f"PostgreSQL {await connection.fetchval('SHOW server_version')}",
                "database": await connection.fetchval("SELECT current_database()"),
                "role": await connection.fetchval("SELECT current_user"),
                "schema": self.address.schema,
                "schema version": str(await schema.version_of(connection, self.address.schema)),
                "synchronous_commit": await connection.fetchval("SHOW synchronous_commit"),
                "fsync": await connection.fetchval("SHOW fsync"),
            }


class ConnectionLeaseKeeper:
    """Renews on a connection of its own, which is made again whenever it breaks."""

    def __init__(self, address: Address, renew_sql: str) -> None:
        self._address = address
        self._renew_sql = renew_sql
        self._connection: asyncpg.Connection[Any] | None = None

    async def renew(self, node_id: str, lease: int) -> bool:
        """Lease from now on; False: the row is gone."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._address)
        with translated():
            status: str = await self._connection.execute(self._renew_sql, node_id, lease)
        return status == "UPDATE 1"

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.terminate()
