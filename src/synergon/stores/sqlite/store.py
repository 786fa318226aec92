"""The SQLite store. Writes share commits on one thread, reads go beside it on another; every commit is synced.

Several processes of one host may use the file at once: SQLite's own lock decides who writes, so a guard that is
checked inside a transaction stays true until its commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from synergon.errors import NotAvailable, NotConnected, StoreUnavailable
from synergon.model.claims import CandidateQuery, ClaimRequest, Claims
from synergon.model.groups import GroupRecord
from synergon.model.lifecycle import State
from synergon.model.nodes import NewNode, NodeRecord
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.base import Capabilities, SchemaVersions
from synergon.stores.base_store import BaseStore
from synergon.stores.final_events import NOW, OrderedFinalEvents, Position
from synergon.stores.rules.finish import finish
from synergon.stores.session import drive
from synergon.stores.sqlite import (
    candidates,
    claim,
    final_events,
    groups,
    nodes,
    queries,
    schema,
)
from synergon.stores.sqlite.caller_transaction import insert_on
from synergon.stores.sqlite.connection import path_of
from synergon.stores.sqlite.session import Session
from synergon.stores.sqlite.task_transaction import SqliteTaskTransaction
from synergon.stores.sqlite.threads import Reader, Writer
from synergon.stores.sqlite.transaction import Transaction

Result = TypeVar("Result")

LAST_ID: Final = 2**63 - 1
"""No task has a greater one."""


class SqliteStore(BaseStore):
    """One file."""

    capabilities = Capabilities(shared=True, durable=True, transactions=True)

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = path_of(url)
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._transaction_lock = asyncio.Lock()

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        """Connect, and create or migrate the tables."""
        schema.prepare(self.path)
        writer = Writer(self.path, "writer")
        try:
            reader = Reader(self.path, "reader")
        except BaseException:
            writer.connection.close()
            raise
        self._writer, self._reader = writer, reader
        writer.start()
        reader.start()

    async def close(self) -> None:
        """Finish the calls under way, then let the file go."""
        writer, reader = self._writer, self._reader
        if writer is not None and reader is not None:
            await reader.close()
            await writer.close()

    async def schema_versions(self) -> SchemaVersions:
        """What the file has and what this code wants."""
        return SchemaVersions(found=schema.version_at(self.path), wanted=len(schema.migrations()))

    def schema_sql(self) -> str:
        """What makes the tables."""
        return "".join(["BEGIN;\n", *schema.statements(0), "COMMIT;"])

    def _write(self, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        if self._writer is None:
            raise NotConnected(f"the store {self.url} is not open")
        return self._writer.do(lambda transaction: work(transaction, *arguments))

    async def _transact(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        return await self._write(lambda session: drive(rule(session, *arguments)))

    async def _query(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        return await self._read(lambda session: drive(rule(session, *arguments)))

    def _read(self, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        if self._reader is None:
            raise NotConnected(f"the store {self.url} is not open")
        return self._reader.do(lambda transaction: work(transaction, *arguments))

    async def now(self) -> int:
        """The store's clock."""
        return await self._read(lambda transaction: transaction.now)

    async def secret(self) -> bytes:
        """The file's own; whoever asks first makes it."""
        found = await self._read(lambda transaction: transaction.row("secret"))
        return found[0] if found else await self._write(schema.make_secret)

    async def replace_secret(self) -> None:
        """The first one is kept as the identity of the file."""
        await self._write(schema.replace_secret)

    async def identity(self) -> bytes:
        """The first secret."""
        await self.secret()  # made, if there is none
        identity: bytes = (await self._read(lambda transaction: transaction.row("identity")))[0]
        return identity

    # ------------------------------------------------------------ tasks come in

    async def announce_queues(self, queues: Iterable[str]) -> None:
        """A file has one writer at a time anyway."""

    async def insert_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert inside the caller's own transaction, here and now: the connection belongs to this thread."""
        return insert_on(connection, self.path, tasks)

    def insert_on_sync(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """The same for callers without a loop."""
        return insert_on(connection, self.path, tasks)

    async def listen(self, on_kinds: Callable[[Iterable[str] | None], None]) -> None:  # noqa: ARG002  it is the port's
        """Not available: a file tells nobody that it has changed."""
        raise NotAvailable(f"{self.url} cannot be listened to; the sweep finds what others committed")

    # ------------------------------------------------------------ tasks run

    async def claim(self, request: ClaimRequest) -> Claims:
        """Take ready tasks."""
        return await self._transact(claim.claim, request)

    async def look(self, look: CandidateQuery) -> list[TaskRecord]:
        """Ready tasks that a claim might take."""
        return await self._read(candidates.look, look)

    async def ahead(self, task_id: int, limit: int) -> int | None:
        """How many go before this one."""
        return await self._read(candidates.ahead, task_id, limit)

    async def next_start(self, kind: str, limit_key: str) -> int | None:
        """What the rate of a line remembers."""
        return await self._read(candidates.next_start, kind, limit_key)

    async def exchange(self, outcomes: Sequence[FencedOutcome], request: ClaimRequest) -> tuple[list[Verdict], Claims]:
        """Finish and claim with one commit."""
        return await self._transact(self._exchange, outcomes, request)

    @staticmethod
    async def _exchange(
        session: Session, outcomes: Sequence[FencedOutcome], request: ClaimRequest
    ) -> tuple[list[Verdict], Claims]:
        return await finish(session, outcomes), await claim.claim(session, request)

    async def begin(self, hold_seconds: float) -> SqliteTaskTransaction:
        """A transaction for a body; it holds the file's write lock until it ends.

        One body of this process at a time. Between two of them the writer has its turn, the lease first: bodies that
        hold the lock one after the other keep nobody from writing.
        """
        await self._transaction_lock.acquire()
        lock = contextlib.ExitStack()  # released once, however often it is closed
        lock.callback(self._transaction_lock.release)
        try:
            while True:
                await self._write(lambda _: None)
                with contextlib.suppress(StoreUnavailable):  # another process's body holds it; that ends
                    return await SqliteTaskTransaction.open(self.path, hold_seconds, lock.close)
        except BaseException:
            lock.close()
            raise

    async def cancel_requests(self, node_id: str) -> list[int]:
        """Running tasks of this node that somebody wants cancelled."""
        rows = await self._read(lambda transaction: transaction.rows("cancel_requests", node_id))
        return [row[0] for row in rows]

    # ------------------------------------------------------------ time and death

    # ------------------------------------------------------------ nodes

    async def register(self, node: NewNode) -> None:
        """Make the node known."""
        await self._write(nodes.register, node)

    async def keeper(self) -> WriterLeaseKeeper:
        """A path for renewing leases: the front of the writer's queue."""
        if self._writer is None:
            raise NotConnected(f"the store {self.url} is not open")
        return WriterLeaseKeeper(self._writer)

    async def unregister(self, node_id: str) -> None:
        """Forget the node."""
        await self._write(lambda transaction: transaction.run("unregister", node_id))

    async def nodes(self) -> list[NodeRecord]:
        """All registered nodes."""
        return await self._read(nodes.nodes)

    async def running_by_node(self) -> dict[str, int]:
        """How many tasks each node holds."""
        return await self._read(lambda transaction: dict(transaction.rows("running_by_node")))

    # ------------------------------------------------------------ limits, servers, groups, orders

    async def groups(self, ids: Sequence[int]) -> list[GroupRecord | None]:
        """These groups, counted from their rows."""
        return await self._read(groups.groups, ids)

    # ------------------------------------------------------------ reading

    async def get(self, ids: Sequence[int]) -> list[TaskRecord | None]:
        """These tasks, live or final."""
        return await self._read(queries.get, ids)

    async def list_tasks(self, query: TaskQuery) -> TaskPage:
        """One page, newest first."""
        return await self._read(queries.list_tasks, query)

    async def endings(
        self, after: str | None, states: Collection[State], kinds: Collection[str] | None = None
    ) -> OrderedFinalEvents:
        """Read the ends of tasks."""

        def look(position: Position, limit: int) -> asyncio.Future[final_events.Found]:
            return self._read(final_events.look, position, states, kinds, limit)

        if after == NOW:
            moment = await self._read(final_events.last_moment)
            return OrderedFinalEvents(look, (moment, LAST_ID), moment)
        return OrderedFinalEvents.after(look, after)

    async def counts(self) -> dict[tuple[str, str, State], int]:
        """Exact numbers by queue, kind and state."""
        return await self._read(queries.counts)

    async def queues(self) -> list[QueueRecord]:
        """All queues with their numbers."""
        return await self._read(queries.queues)

    async def describe(self) -> dict[str, str]:
        """Facts for people."""
        return await self._read(self._facts)

    def _facts(self, transaction: Transaction) -> dict[str, str]:
        (journal,) = transaction.select("PRAGMA journal_mode", ())[0]
        (synchronous,) = transaction.select("PRAGMA synchronous", ())[0]
        return {
            "file": str(self.path.absolute()),
            "size": f"{self.path.stat().st_size} bytes",
            "schema version": str(schema.version_of(transaction)),
            "SQLite": sqlite3.sqlite_version,
            "journal mode": journal,
            "synchronous": {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}[synchronous],
        }


class WriterLeaseKeeper:
    """Renews at the front of the writer's queue."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def renew(
        self, node_id: str, lease: int, published: bytes | None = None, *, is_stopping: bool = False
    ) -> bool:
        """Lease from now on; False: the row is gone."""
        return await self._writer.do(
            lambda transaction: nodes.renew(transaction, node_id, lease, published, is_stopping=is_stopping),
            urgent=True,
        )

    async def close(self) -> None:
        """The writer belongs to the store."""
