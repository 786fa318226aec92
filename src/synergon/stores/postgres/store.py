"""The PostgreSQL store: READ COMMITTED transactions without advisory locks. Conditions in the statements guard every
change of state.

The rules run on sessions of this store. Plain claims, plain successes and plain inserts have fast paths, which save
round trips to the database.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from synergon.errors import OptionError
from synergon.model.claims import AttemptRequest, ClaimRequest, Claims
from synergon.model.cluster_status import StoreVitals
from synergon.model.groups import NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.model.record import from_datetime
from synergon.model.task_records import TaskPage, TaskQuery
from synergon.model.tasks import Insertion, NewTask, Reaped
from synergon.stores import columns
from synergon.stores.base import Capabilities, FinalEvents, SchemaVersions
from synergon.stores.base_store import BaseStore, Logger, reads_once, writes
from synergon.stores.contention import Contention
from synergon.stores.postgres import (
    candidates,
    grants,
    leases,
    new_tasks,
    queries,
    schema,
)
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.caller_transaction import insert_on, open_group_on
from synergon.stores.postgres.claim import Claimer
from synergon.stores.postgres.connection import Connections
from synergon.stores.postgres.drivers import Driver, driver_of
from synergon.stores.postgres.finish_fast import are_plain, finish_plain, finish_within
from synergon.stores.postgres.insert_batcher import InsertBatcher
from synergon.stores.postgres.listener import listen
from synergon.stores.postgres.session import Session
from synergon.stores.postgres.task_transaction import PostgresTaskTransaction
from synergon.stores.session import drive
from synergon.stores.slow_statements import SlowStatements
from synergon.stores.sql_rows.task_listing import list_tasks

Result = TypeVar("Result")
SHARDS: Final = 64


class PostgresStore(BaseStore):
    """A store in one schema of a PostgreSQL database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.address: Final = Address.parse(url)
        self.capabilities = Capabilities(
            shared=True,
            durable=True,
            transactions=True,
            remote=True,
            listens=self.address.listens,
            scans_to_count=True,
        )
        self._profile = self.address.profile
        self._sql = self._profile.statements(self.address.schema)
        self._shard = random.randrange(SHARDS)
        slow_seconds = self.address.slow_seconds
        self._slow = None if slow_seconds is None else SlowStatements(slow_seconds, self._sql)
        self._connections = Connections(self.address, slow=self._slow)
        self._task_transactions = Connections(self.address, for_task_functions=True)
        seconds = self._connections.rollback_seconds
        self._plain_inserts = InsertBatcher(self._insert_plain, cancel_seconds=seconds)
        self._bound_inserts = InsertBatcher(self._insert_bound, cancel_seconds=seconds)
        self._identity: schema.Identity | None = None
        self._known_queues: set[str] = set()
        self._claimer = Claimer(self._profile, self)

    # ------------------------------------------------------------ open and close

    def introduce(self, client: str, logger: Logger) -> None:
        super().introduce(client, logger)
        self.address.hosts.application_name = client
        if self._slow is not None:
            self._slow.logger = logger

    async def open(self) -> None:
        """Connect, and create or migrate the tables if the role may."""
        self._identity = await schema.prepare(self.address)
        await self._connections.open()
        await self._task_transactions.open()
        self._plain_inserts.reopen()
        self._bound_inserts.reopen()

    async def close(self) -> None:
        seconds = self.address.call_seconds
        await asyncio.gather(self._plain_inserts.close(seconds), self._bound_inserts.close(seconds))
        await self._connections.close()
        await self._task_transactions.close()

    async def schema_versions(self) -> SchemaVersions:
        return SchemaVersions(
            found=await schema.version_at(self.address), wanted=len(self._profile.scripts(self.address.schema))
        )

    def schema_sql(self) -> str:
        return schema.whole_sql(self.address)

    def grants_sql(self, role: str, name: str) -> str:
        """The GRANT statements for a producer, worker, viewer or operator."""
        return grants.grants(self.address.schema, role, name)

    async def write(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Run a function in one transaction. Repeats the transaction after a deadlock or a serialization failure."""
        return await self._retry_contention(self._write_once, work, *arguments)

    async def _transact(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        return await self.write(rule, *arguments)

    async def _query(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        return await self._snapshot(rule, *arguments)

    async def _query_once(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        return await self.statement(rule, *arguments)

    async def statement(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Run a function that executes one statement, which is its own transaction."""
        return await self._retry_contention(self._statement_once, work, *arguments)

    async def _snapshot(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Run queries on one snapshot. Without it, a task that moves from one table to the other between two queries
        would be missed."""
        return await self._retry_contention(self._snapshot_once, work, *arguments)

    async def _retry_contention(self, once: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Run a transaction. After a deadlock or a serialization failure, repeat it as a whole."""
        for pause in self._profile.contention_pauses:
            try:
                return await once(*arguments)
            except Contention:
                await asyncio.sleep(pause * (0.5 + random.random()))
        return await once(*arguments)

    async def _write_once(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        async with self._connections.transaction() as connection:
            session = self._session(connection)
            result = await work(session, *arguments)
            await session.flush()
        self._known_queues |= session.new_queues  # not before the commit
        return result

    async def _statement_once(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        return await self._connections.run(lambda connection: work(self._session(connection), *arguments))

    async def _snapshot_once(self, work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        async with self._connections.transaction("repeatable_read") as connection:
            session = self._session(connection)
            await session.rows("allow_reading_all")
            return await work(session, *arguments)

    def _session(self, connection: Any) -> Session:
        return Session(
            connection, self._profile, self._sql, self._shard, self.unreadable, known_queues=self._known_queues
        )

    async def now(self) -> int:
        return from_datetime(await self.statement(lambda session: session.value("now")))

    async def secret(self) -> bytes:
        """The secret with which peers sign their messages. It is created together with the schema."""
        secret: str = await self.statement(lambda session: session.value("secret"))
        return secret.encode()

    async def replace_secret(self) -> None:
        """Generate a new secret. The first one remains stored, as the identity of the store."""
        await self.write(_replace_secret)

    async def identity(self) -> bytes:
        """A value that distinguishes this store from every other one: its first secret."""
        identity: str = await self.statement(lambda session: session.value("identity"))
        return identity.encode()

    # ------------------------------------------------------------ insert

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store all of `tasks` or none. Tasks without keys share statements with other calls."""
        self._connections.check_open()
        if any(task.key is not None for task in tasks):
            return await super().insert(tasks)
        is_bound = any(map(columns.is_bound, tasks))
        return await (self._bound_inserts if is_bound else self._plain_inserts).insert(tasks)

    async def _insert_plain(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        if not all(task.queue in self._known_queues for task in tasks):
            await self.announce_queues({task.queue for task in tasks})
        if len(tasks) > new_tasks.TASKS_AT_ONCE:
            return await self.write(new_tasks.insert_in_parts, tasks)
        if len(tasks) == 1 and columns.form_of(tasks[0]) is columns.Form.BARE:
            return await self.statement(new_tasks.insert_bare, tasks[0])
        return await self.statement(new_tasks.insert_plain, tasks)

    async def _insert_bound(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        return await super().insert(tasks)

    async def announce_queues(self, queues: Iterable[str]) -> None:
        """Insert the rows of these queues. Queues are never deleted, so each is inserted once per process."""
        unknown = set(queues) - self._known_queues
        if unknown:
            await self.statement(lambda session: session.rows("add_queues", sorted(unknown)))
            self._known_queues |= unknown

    async def insert_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert inside the caller's own transaction."""
        return await insert_on(driver_of(connection), *self._target_of_callers(), tasks)

    def insert_on_sync(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """`insert_on` for a synchronous connection."""
        return drive(insert_on(_synchronous(connection), *self._target_of_callers(), tasks))

    async def open_group_on(self, connection: Any, new: NewGroup) -> OpenedGroup:
        return await open_group_on(driver_of(connection), *self._target_of_callers(), new)

    def open_group_on_sync(self, connection: Any, new: NewGroup) -> OpenedGroup:
        return drive(open_group_on(_synchronous(connection), *self._target_of_callers(), new))

    def _target_of_callers(self) -> tuple[Address, schema.Identity, Mapping[str, str]]:
        """The data of this store that an insert in a caller's transaction needs."""
        self._connections.check_open()
        assert self._identity is not None, "an open store knows its database"
        return self.address, self._identity, self._sql

    async def listen(self, on_kinds: Callable[[Iterable[str] | None], None]) -> None:
        """Call `on_kinds` with the kinds of tasks that callers' own transactions inserted. Runs until it is
        cancelled."""
        self._connections.check_open()
        await listen(self.address, on_kinds)

    # ------------------------------------------------------------ claim and finish

    async def claim(self, request: ClaimRequest) -> Claims:
        return await self._claimer.claim(request)

    async def finish(self, outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        """Apply outcomes. Plain successes, which are the most frequent, take one statement, except with the distributed
        profile."""
        if not self._profile.changes_several_tables or not are_plain(outcomes):
            return await super().finish(outcomes)
        return await finish_plain(self, outcomes)

    async def exchange(self, outcomes: Sequence[FencedOutcome], request: ClaimRequest) -> tuple[list[Verdict], Claims]:
        """`finish`, then `claim`, in one transaction. With the distributed profile they are two transactions."""
        if not self._profile.changes_several_tables:
            return await self.finish(outcomes), await self.claim(request)
        return await self.write(self._exchange, outcomes, request)

    async def _exchange(
        self, session: Session, outcomes: Sequence[FencedOutcome], request: ClaimRequest
    ) -> tuple[list[Verdict], Claims]:
        await self._claimer.lock(session, request, await session.locks.kinds_of_outcomes(outcomes))
        verdicts = await finish_within(session, outcomes)
        return verdicts, await self._claimer.claim_within(session, request)

    read_candidates = writes(candidates.read_candidates)
    ahead = writes(candidates.ahead)
    next_start = writes(candidates.next_start)

    async def begin(self, hold_seconds: float) -> PostgresTaskTransaction:
        """Open a transaction for a task function, on a connection of its own."""
        return await PostgresTaskTransaction.open(
            self._task_transactions, self.address, self._sql, self._shard, hold_seconds
        )

    async def requests(self, node_id: str) -> list[AttemptRequest]:
        return await self.statement(lambda session: session.typed(AttemptRequest, "requests", node_id))

    # ------------------------------------------------------------ dead nodes

    async def reap(self, gone: Sequence[str], limit: int) -> list[Reaped]:
        """Take running tasks from dead nodes. A cheap statement first checks whether there are any dead nodes or
        orphaned tasks."""
        if not await self.statement(lambda session: session.value("has_dead_nodes", list(gone))):
            return []
        return await super().reap(gone, limit)

    # ------------------------------------------------------------ nodes

    register = writes(leases.register)
    nodes = reads_once(queries.nodes)
    running_by_node = reads_once(queries.running_by_node)

    async def keeper(self) -> leases.ConnectionLeaseKeeper:
        """Open a lease keeper, on a connection of its own."""
        self._connections.check_open()
        return leases.ConnectionLeaseKeeper(self.address, self._sql["renew"], self._connections)

    async def unregister(self, node_id: str) -> None:
        async def delete(session: Session) -> None:
            await session.run("keep_node_names", [node_id])
            await session.run("unregister", node_id)

        await self.write(delete)

    # ------------------------------------------------------------ queries

    async def list_tasks(self, query: TaskQuery) -> TaskPage:
        async with self._connections.transaction("repeatable_read") as connection:
            await connection.execute(self._sql["plan_by_value"])
            return await list_tasks(queries.ListingReader(connection, self._sql, self.unreadable), query)

    async def endings(
        self, after: str | None, states: Collection[State], kinds: Collection[str] | None = None
    ) -> FinalEvents:
        return await self._profile.endings(self, after, states, kinds, self.address.call_seconds)

    async def vitals(self) -> StoreVitals:
        size, in_use, waiting = self._connections.use_of_pool
        pool = StoreVitals(pool_size=size, pool_in_use=in_use, pool_waiting=waiting)
        if "vitals" not in self._sql:  # a distributed database has no vacuum
            return pool
        rows = await self.statement(lambda session: session.rows("vitals", self.address.schema))
        return replace(
            pool,
            dead_rows={row["relname"]: row["dead_rows"] for row in rows},
            oldest_transaction_seconds=max((row["seconds"] for row in rows), default=None),
        )

    async def describe(self) -> dict[str, str]:
        async with self._connections.transaction() as connection:
            facts = {
                "server": _product(await connection.fetchval("SELECT version()")),
                "database": await connection.fetchval("SELECT current_database()"),
                "role": await connection.fetchval("SELECT current_user"),
                "schema": self.address.schema,
                "schema version": str(await schema.version_of(connection, self.address.schema)),
                "profile": self._profile.name,
            }
            for setting in ("synchronous_commit", "fsync"):  # which not every server has
                facts[setting] = await connection.fetchval("SELECT current_setting($1, true)", setting)
        return {name: fact for name, fact in facts.items() if fact is not None}


def _synchronous(connection: Any) -> Driver:
    driver = driver_of(connection)
    if driver.waits:
        raise OptionError(
            f"conn is an asynchronous connection ({type(connection).__name__}), which a *_sync call cannot await; "
            "use `await ...enqueue(...)`, or a synchronous connection"
        )
    return driver


def _product(version: str) -> str:
    """The name and version of the database, without build details."""
    return version.partition(" on ")[0].partition(" (")[0]


async def _replace_secret(session: Session) -> None:
    await session.rows("keep_first_secret")
    await session.rows("replace_secret")
