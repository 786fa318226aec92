"""The SQLite store. One thread writes; calls that arrive together share a commit. Another thread reads. Every commit is
synced to the disk.

Several processes of one host may use the file at once. SQLite has one writer at a time, so a condition that a
transaction has checked remains true until its commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Concatenate, Final

from synergon.errors import NotAvailable, NotConnected, StoreUnavailable
from synergon.model.claims import AttemptRequest, ClaimRequest, Claims
from synergon.model.groups import NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.limits import NewLimit, NewProvider
from synergon.model.nodes import NewNode
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.base import Capabilities, SchemaVersions
from synergon.stores.base_store import Arguments, BaseStore, Logger, Result, StoreCall
from synergon.stores.final_events import NOW, OrderedFinalEvents, Position
from synergon.stores.rules import limits as limit_rules
from synergon.stores.rules.finish import finish
from synergon.stores.session import drive
from synergon.stores.slow_statements import SlowStatements
from synergon.stores.sqlite import (
    candidates,
    claim,
    final_events,
    leases,
    queries,
    schema,
)
from synergon.stores.sqlite.caller_transaction import insert_on, open_group_on
from synergon.stores.sqlite.connection import path_of, slow_seconds_of
from synergon.stores.sqlite.session import Session
from synergon.stores.sqlite.task_transaction import SqliteTaskTransaction
from synergon.stores.sqlite.threads import Reader, Writer
from synergon.stores.sqlite.transaction import SQL, Transaction, as_json

LAST_ID: Final = 2**63 - 1
"""The greatest id that a task can have."""


def _reads(work: Callable[Concatenate[Any, Arguments], Result]) -> StoreCall[Arguments, Result]:
    """Make a method of the store that runs `work` on the reader thread."""

    async def call(store: SqliteStore, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        return await store._read(partial(work, **named) if named else work, *arguments)  # noqa: SLF001  of this class

    return call


class SqliteStore(BaseStore):
    """A store in one SQLite file."""

    capabilities = Capabilities(shared=True, durable=True, transactions=True, scans_to_count=True)

    def __init__(self, url: str) -> None:
        self.url = url
        self.path: Final = path_of(url)
        slow_seconds = slow_seconds_of(url)
        self._slow = None if slow_seconds is None else SlowStatements(slow_seconds, SQL)
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._transaction_lock = asyncio.Lock()

    # ------------------------------------------------------------ open and close

    def introduce(self, client: str, logger: Logger) -> None:
        super().introduce(client, logger)
        if self._slow is not None:
            self._slow.logger = logger

    async def open(self) -> None:
        """Connect, and create or migrate the tables."""
        schema.prepare(self.path)
        writer = Writer(self.path, "writer", self.unreadable, self._slow)
        try:
            reader = Reader(self.path, "reader", self.unreadable, self._slow)
        except BaseException:
            writer.connection.close()
            raise
        self._writer, self._reader = writer, reader
        writer.start()
        reader.start()

    async def close(self) -> None:
        """Finish the calls that are under way, then close the file."""
        writer, reader = self._writer, self._reader
        if writer is not None and reader is not None:
            await reader.close()
            await writer.close()

    async def schema_versions(self) -> SchemaVersions:
        return SchemaVersions(found=schema.version_at(self.path), wanted=len(schema.migrations()))

    def schema_sql(self) -> str:
        return "".join(["BEGIN;\n", *schema.statements(0), "COMMIT;"])

    def grants_sql(self, role: str, name: str) -> str:  # noqa: ARG002  there is nothing to grant
        """Raises `NotAvailable`: a file has no roles."""
        raise NotAvailable(f"{self.url} is a file without roles: who may read or write the file may do everything")

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

    async def declare(self, limits: Sequence[NewLimit], providers: Sequence[NewProvider]) -> None:
        """Declare limits and providers. Takes no write lock if nothing changes: an engine declares when it connects,
        perhaps while a caller's own transaction holds the lock."""
        if not await self._query(limit_rules.is_declared, limits, providers):
            await self._transact(limit_rules.declare, limits, providers)

    async def now(self) -> int:
        return await self._read(lambda transaction: transaction.now)

    async def secret(self) -> bytes:
        """The secret with which peers sign their messages. The first call creates it."""
        found = await self._read(lambda transaction: transaction.row("secret"))
        return found[0] if found else await self._write(schema.make_secret)

    async def replace_secret(self) -> None:
        """Generate a new secret. The first one remains stored, as the identity of the store."""
        await self._write(schema.replace_secret)

    async def identity(self) -> bytes:
        """A value that distinguishes this store from every other one: its first secret."""
        await self.secret()  # made, if there is none
        identity: bytes = (await self._read(lambda transaction: transaction.row("identity")))[0]
        return identity

    # ------------------------------------------------------------ insert

    async def announce_queues(self, queues: Iterable[str]) -> None:
        """Does nothing: a caller's transaction holds the write lock of the file, so inserting the row of a queue blocks
        no further transaction."""

    async def insert_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert inside the caller's own transaction. Runs on the calling thread, which owns the connection."""
        return insert_on(connection, self.path, tasks)

    def insert_on_sync(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        return insert_on(connection, self.path, tasks)

    async def open_group_on(self, connection: Any, new: NewGroup) -> OpenedGroup:
        return open_group_on(connection, self.path, new)

    def open_group_on_sync(self, connection: Any, new: NewGroup) -> OpenedGroup:
        return open_group_on(connection, self.path, new)

    async def listen(self, on_kinds: Callable[[Iterable[str] | None], None]) -> None:  # noqa: ARG002  it is the port's
        """Raises `NotAvailable`: SQLite does not announce changes of a file."""
        raise NotAvailable(f"{self.url} cannot be listened to; the sweep finds what others committed")

    # ------------------------------------------------------------ claim and finish

    async def claim(self, request: ClaimRequest) -> Claims:
        return await self._transact(claim.claim, request)

    async def exchange(self, outcomes: Sequence[FencedOutcome], request: ClaimRequest) -> tuple[list[Verdict], Claims]:
        """`finish`, then `claim`, in one transaction."""
        return await self._transact(self._exchange, outcomes, request)

    @staticmethod
    async def _exchange(
        session: Session, outcomes: Sequence[FencedOutcome], request: ClaimRequest
    ) -> tuple[list[Verdict], Claims]:
        return await finish(session, outcomes), await claim.claim(session, request)

    read_candidates = _reads(candidates.read_candidates)
    ahead = _reads(candidates.ahead)
    next_start = _reads(candidates.next_start)

    async def begin(self, hold_seconds: float) -> SqliteTaskTransaction:
        """Open a transaction for a task function. It holds the write lock of the file until it ends.

        In one process, only one task function at a time has a transaction. Between two such transactions the writer
        thread commits its waiting calls, lease renewals first, so that a series of transactions does not block it.
        """
        await self._transaction_lock.acquire()
        lock = contextlib.ExitStack()  # released once, however often it is closed
        lock.callback(self._transaction_lock.release)
        try:
            while True:
                await self._write(lambda _: None)
                with contextlib.suppress(
                    StoreUnavailable
                ):  # a task function of another process holds the lock; that ends
                    return await SqliteTaskTransaction.open(self.path, hold_seconds, lock.close)
        except BaseException:
            lock.close()
            raise

    async def requests(self, node_id: str) -> list[AttemptRequest]:
        return await self._read(lambda transaction: transaction.typed(AttemptRequest, "requests", node_id))

    # ------------------------------------------------------------ nodes

    async def register(self, node: NewNode) -> None:
        await self._write(leases.register, node)

    async def keeper(self) -> WriterLeaseKeeper:
        """Open a lease keeper. Its renewals go to the front of the writer's queue."""
        if self._writer is None:
            raise NotConnected(f"the store {self.url} is not open")
        return WriterLeaseKeeper(self._writer)

    async def unregister(self, node_id: str) -> None:
        def delete(transaction: Transaction) -> None:
            transaction.run("keep_node_names", **{"1": as_json([node_id]), "now": transaction.now})
            transaction.run("unregister", node_id)

        await self._write(delete)

    nodes = _reads(leases.nodes)
    running_by_node = _reads(queries.running_by_node)

    # ------------------------------------------------------------ queries

    list_tasks = _reads(queries.list_tasks)

    async def endings(
        self, after: str | None, states: Collection[State], kinds: Collection[str] | None = None
    ) -> OrderedFinalEvents:

        def read_page(position: Position, limit: int) -> asyncio.Future[final_events.Found]:
            return self._read(final_events.read_page, position, states, kinds, limit)

        if after == NOW:
            moment = await self._read(final_events.last_moment)
            return OrderedFinalEvents(read_page, (moment, LAST_ID), moment)
        return OrderedFinalEvents.after(read_page, after)

    async def describe(self) -> dict[str, str]:
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
    """Renews leases by the writer thread. Renewals go to the front of its queue."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def renew(self, node_id: str, lease: int, published: bytes | None = None) -> bool:
        """Extend the lease of a node. False if it has no row."""
        return await self._writer.do(
            lambda transaction: leases.renew(transaction, node_id, lease, published),
            urgent=True,
        )

    async def close(self) -> None:
        """Does nothing: the writer thread belongs to the store."""
