"""Enqueueing on a caller's own connection to PostgreSQL, of every driver, and hearing of it elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from tests.conftest import NewEngine
from tests.postgres_server import IS_OURS, administer, server_url, store_url
from tests.stores.actions import KIND, add, demands, listed, read, states
from tests.support import PATIENCE_SECONDS

from synergon import Engine
from synergon.errors import KeyConflict, NotConnected, OptionError
from synergon.model.dependencies import Need
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import State
from synergon.model.record import from_datetime
from synergon.model.tasks import NewTask
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.caller_transaction import kinds_of, payload_of
from synergon.stores.postgres.drivers import in_style

Opened = tuple[Any, Callable[[], Awaitable[None]]]
"""A connection with a transaction, and how the caller commits it."""


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(store_url())
    await store.open()
    yield store
    await store.close()


def sqlalchemy_url(driver: str) -> str:
    return server_url().replace("postgresql://", f"postgresql+{driver}://", 1)


# ---------------------------------------------------------------- drivers


@asynccontextmanager
async def of_asyncpg() -> AsyncIterator[Opened]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    transaction = connection.transaction()
    await transaction.start()
    yield connection, transaction.commit
    await connection.close()


@asynccontextmanager
async def of_asyncpg_pool() -> AsyncIterator[Opened]:
    async with asyncpg.create_pool(server_url(), min_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield connection, transaction.commit


@asynccontextmanager
async def of_psycopg() -> AsyncIterator[Opened]:
    with psycopg.connect(server_url(), row_factory=dict_row) as connection:

        async def commit() -> None:
            connection.commit()

        yield connection, commit


@asynccontextmanager
async def of_psycopg_async() -> AsyncIterator[Opened]:
    async with await psycopg.AsyncConnection.connect(server_url()) as connection:
        yield connection, connection.commit


@asynccontextmanager
async def of_sqlalchemy_session() -> AsyncIterator[Opened]:
    with Session(sqlalchemy.create_engine(sqlalchemy_url("psycopg"), poolclass=NullPool)) as session:

        async def commit() -> None:
            session.commit()

        yield session, commit


@asynccontextmanager
async def of_sqlalchemy_connection() -> AsyncIterator[Opened]:
    with sqlalchemy.create_engine(sqlalchemy_url("psycopg"), poolclass=NullPool).connect() as connection:

        async def commit() -> None:
            connection.commit()

        yield connection, commit


def of_sqlalchemy_async_session(driver: str) -> Callable[[], Any]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Opened]:
        async with AsyncSession(create_async_engine(sqlalchemy_url(driver), poolclass=NullPool)) as session:
            yield session, session.commit

    return opened


@asynccontextmanager
async def of_sqlalchemy_async_connection() -> AsyncIterator[Opened]:
    async with create_async_engine(sqlalchemy_url("asyncpg"), poolclass=NullPool).connect() as connection:
        yield connection, connection.commit


SYNCHRONOUS = {
    "psycopg": of_psycopg,
    "SQLAlchemy session": of_sqlalchemy_session,
    "SQLAlchemy connection": of_sqlalchemy_connection,
}
ASYNCHRONOUS = {
    "asyncpg": of_asyncpg,
    "asyncpg pool": of_asyncpg_pool,
    "psycopg async": of_psycopg_async,
    "SQLAlchemy async session, asyncpg": of_sqlalchemy_async_session("asyncpg"),
    "SQLAlchemy async session, psycopg": of_sqlalchemy_async_session("psycopg"),
    "SQLAlchemy async connection": of_sqlalchemy_async_connection,
}
DRIVERS = SYNCHRONOUS | ASYNCHRONOUS

every_driver = pytest.mark.parametrize("opened", DRIVERS.values(), ids=DRIVERS.keys())
every_synchronous_driver = pytest.mark.parametrize("opened", SYNCHRONOUS.values(), ids=SYNCHRONOUS.keys())
every_asynchronous_driver = pytest.mark.parametrize("opened", ASYNCHRONOUS.values(), ids=ASYNCHRONOUS.keys())

RICH = NewTask(
    kind=KIND,
    queue="50 % off",
    payload=b'{"$1": "%s"}',
    priority=2**40,
    run_at=from_datetime(datetime(2100, 1, 1, tzinfo=UTC)),
    expires_in=1_000_000,
    max_attempts=3,
    tags=("a", "b"),
    meta=b'{"x": 1}',
    requirements=demands("zone:eu", cpu=0.5),
)


@every_driver
async def test_lines_groups_and_servers_are_kept_on_every_connection(store: PostgresStore, opened: Any) -> None:
    ended = await add(store)
    await store.cancel([ended])
    group = await store.open_group(NewGroup(name="all", tasks=(NewTask(kind=KIND),)))
    held = await add(store, limit_key="ada", key="k")
    tasks = [
        NewTask(kind=KIND, limit_key="ada", group_id=group.id),
        NewTask(kind=KIND, after=(Need(task_id=held),)),
        NewTask(
            kind=KIND,
            after=(Need(task_id=ended),),
            if_dependency_fails="run",
            is_command=True,
            target="a",
            provider="gpu",
            priority=3,
        ),
        NewTask(kind=KIND, limit_key="bob", key="k", on_conflict="replace"),
    ]
    async with opened() as (connection, commit):
        inserted = await store.insert_on(connection, tasks)
        await commit()
    assert [one.state for one in inserted] == [State.SCHEDULED, State.SCHEDULED, State.READY, State.SCHEDULED]
    lined, after, command, replaced = [await read(store, one.id) for one in inserted]
    assert (lined.limit_key, lined.group_id) == ("ada", group.id)
    assert (after.is_dependent, command.is_dependent) == (True, False)
    assert (command.is_command, command.target, command.priority) == (True, "a", 0)
    assert (replaced.id, replaced.limit_key) == (held, "bob")
    await store.wake(100)
    assert await states(store, [lined.id, held, after.id]) == [State.READY, State.READY, State.WAITING]


@every_driver
async def test_the_task_is_there_when_the_caller_commits(store: PostgresStore, opened: Any) -> None:
    async with opened() as (connection, commit):
        (rich, plain) = await store.insert_on(connection, [RICH, NewTask(kind=KIND)])
        assert await listed(store) == []
        await commit()
    assert await listed(store) == [plain.id, rich.id]
    record = await read(store, rich.id)
    assert (record.state, record.queue, record.priority) == (State.SCHEDULED, RICH.queue, RICH.priority)
    assert (record.run_at.year, record.max_attempts, record.tags, record.meta) == (2100, 3, ("a", "b"), {"x": 1})
    assert bytes(record.payload) == RICH.payload
    assert record.requirements == RICH.requirements


@every_driver
async def test_nothing_is_there_when_the_caller_goes_away(store: PostgresStore, opened: Any) -> None:
    async with opened() as (connection, _):
        await store.insert_on(connection, [NewTask(kind=KIND)])
        if hasattr(connection, "rollback"):
            rolled_back = connection.rollback()
            if rolled_back is not None:
                await rolled_back
    assert await listed(store) == []


@every_driver
async def test_keys_are_met_inside_the_callers_transaction(store: PostgresStore, opened: Any) -> None:
    keyed = NewTask(kind=KIND, key="a")
    replacing = NewTask(
        kind=KIND, key="a", on_conflict="replace", payload=b'"new"', tags=("t",), delay=1, requirements=demands()
    )
    async with opened() as (connection, commit):
        (first,) = await store.insert_on(connection, [keyed])
        (again,) = await store.insert_on(connection, [keyed])
        (replaced,) = await store.insert_on(connection, [replacing])
        with pytest.raises(KeyConflict):
            await store.insert_on(connection, [NewTask(kind=KIND), NewTask(kind=KIND, key="a", on_conflict="raise")])
        await commit()
    assert [first.id, first.id] == [again.id, replaced.id]
    assert [first.created, again.created, replaced.created] == [True, False, False]
    assert await listed(store) == [first.id]
    record = await read(store, first.id)
    assert (bytes(record.payload), record.requirements) == (b'"new"', demands())


@every_synchronous_driver
async def test_a_synchronous_connection_serves_without_a_loop(store: PostgresStore, opened: Any) -> None:
    async with opened() as (connection, commit):
        (insertion,) = store.insert_on_sync(connection, [NewTask(kind=KIND)])
        await commit()
    assert await listed(store) == [insertion.id]


@every_asynchronous_driver
async def test_an_asynchronous_connection_is_refused_without_a_loop(store: PostgresStore, opened: Any) -> None:
    async with opened() as (connection, _):
        with pytest.raises(OptionError, match="asynchronous"):
            store.insert_on_sync(connection, [NewTask(kind=KIND)])


async def test_a_new_queue_in_an_open_transaction_keeps_nobody_waiting(new_engine: NewEngine) -> None:
    engine = new_engine(store_url())
    call = engine.call("work")
    async with engine, of_asyncpg() as (connection, commit):
        await engine.enqueue([call], conn=connection)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await engine.enqueue([call])
        await commit()
        assert len(await engine.tasks()) == 2


async def test_a_delay_counts_from_the_call_and_not_from_the_transactions_beginning(store: PostgresStore) -> None:
    async with of_asyncpg() as (connection, commit):
        began_at = await connection.fetchval("SELECT now()")
        await asyncio.sleep(0.05)
        (insertion,) = await store.insert_on(connection, [NewTask(kind=KIND, delay=1_000_000)])
        await commit()
    assert (await read(store, insertion.id)).run_at >= began_at + timedelta(seconds=1.05)


# ---------------------------------------------------------------- refusals


async def test_connections_that_commit_by_themselves_are_refused(store: PostgresStore) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url("psycopg"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    asynchronous = create_async_engine(sqlalchemy_url("asyncpg"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    bare: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    with psycopg.connect(server_url(), autocommit=True) as plain, engine.connect() as core:
        async with asynchronous.connect() as async_core:
            for connection in (bare, plain, core, async_core):
                with pytest.raises(OptionError, match="no transaction"):
                    await store.insert_on(connection, [NewTask(kind=KIND)])
    await bare.close()
    assert await listed(store) == []


async def test_a_transaction_that_has_failed_is_refused(store: PostgresStore) -> None:
    with psycopg.connect(server_url()) as connection:
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT 1 / 0")
        with pytest.raises(OptionError, match="roll it back"):
            await store.insert_on(connection, [NewTask(kind=KIND)])


async def test_a_connection_to_another_database_is_refused_and_left_usable(store: PostgresStore) -> None:
    administer("DROP DATABASE IF EXISTS another")
    administer("CREATE DATABASE another")
    url = server_url().replace("/postgres?", "/another?") if IS_OURS else pytest.skip("the server is not ours")
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    async with connection.transaction():
        with pytest.raises(OptionError, match="'another' without a schema"):
            await store.insert_on(connection, [NewTask(kind=KIND)])
        assert await connection.fetchval("SELECT 1") == 1
    twin = PostgresStore(f"{url}&schema={store.address.schema}")
    await twin.open()
    async with connection.transaction():
        with pytest.raises(OptionError, match="'another' with a schema"):
            await store.insert_on(connection, [NewTask(kind=KIND)])
    await twin.close()
    await connection.close()
    administer("DROP DATABASE another WITH (FORCE)")


async def test_something_that_is_no_connection_is_named(store: PostgresStore) -> None:
    with pytest.raises(OptionError, match=r"builtins\.dict"):
        await store.insert_on({}, [NewTask(kind=KIND)])
    sqlite = sqlalchemy.create_engine("sqlite://", poolclass=NullPool)
    with sqlite.connect() as connection, pytest.raises(OptionError, match="sqlite"):
        await store.insert_on(connection, [NewTask(kind=KIND)])


async def test_a_closed_store_joins_nothing(store: PostgresStore) -> None:
    await store.close()
    async with of_psycopg() as (connection, _):
        with pytest.raises(NotConnected):
            store.insert_on_sync(connection, [NewTask(kind=KIND)])


# ---------------------------------------------------------------- statements of every style


def test_statements_are_rewritten_for_each_style_of_parameters() -> None:
    sql = "SELECT '%', $2, $1, $2"
    assert in_style("numeric_dollar", sql, [1, 2]) == (sql, (1, 2))
    assert in_style("pyformat", sql, [1, 2]) == ("SELECT '%%', %(p2)s, %(p1)s, %(p2)s", {"p1": 1, "p2": 2})
    assert in_style("format", sql, [1, 2]) == ("SELECT '%%', %s, %s, %s", (2, 1, 2))
    with pytest.raises(OptionError, match="qmark"):
        in_style("qmark", sql, [])


# ---------------------------------------------------------------- wake-ups


def test_kinds_fit_into_a_notification_or_stand_for_all() -> None:
    assert kinds_of(payload_of({"b", "a"})) == ["a", "b"]
    assert kinds_of(payload_of({f"kind-{number}" for number in range(2000)})) is None
    assert kinds_of("nonsense") is None


async def test_kinds_are_heard_when_the_caller_commits_and_not_before(store: PostgresStore) -> None:
    heard: asyncio.Queue[Iterable[str] | None] = asyncio.Queue()
    listening = asyncio.create_task(store.listen(heard.put_nowait))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await heard.get() is None, "whatever came before is anybody's guess"
        async with of_asyncpg() as (connection, commit):
            await store.insert([NewTask(kind="silent")])
            await store.insert_on(connection, [NewTask(kind="b"), NewTask(kind="a")])
            assert heard.empty()
            await commit()
        assert await heard.get() == ["a", "b"]
    listening.cancel()


async def test_a_listener_that_hears_no_more_says_so(store: PostgresStore) -> None:
    ready = asyncio.Event()
    listening = asyncio.create_task(store.listen(lambda _: ready.set()))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await ready.wait()
        administer("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%%'")
        with pytest.raises(Exception, match="wake-ups was lost"):
            await listening


async def test_a_worker_elsewhere_runs_it_without_waiting_for_the_sweep(new_engine: NewEngine) -> None:
    url = store_url()
    runner, producer = new_engine(url), new_engine(url)
    done = asyncio.Event()

    @runner.task
    async def work(number: int) -> int:
        done.set()
        return number

    async with runner, runner.worker(), producer, of_asyncpg() as (connection, commit):
        await asyncio.sleep(0.3)  # let the node's first looks pass
        (handle,) = await producer.enqueue([producer.call("work", number=1)], conn=connection)
        await commit()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await done.wait()
        assert handle.created


def test_code_without_a_loop_enqueues_on_its_own_connection() -> None:
    engine = Engine(store_url())

    @engine.task
    def work() -> None: ...

    with engine, psycopg.connect(server_url()) as connection:
        handle = work.with_options(conn=connection).enqueue_sync()
        connection.commit()
        assert handle.status_sync().state is State.READY


async def test_without_listening_nothing_is_notified() -> None:
    store = PostgresStore(store_url(listen="false"))
    assert not store.capabilities.listens
    await store.open()
    watcher: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    heard: list[object] = []
    await watcher.add_listener(store.address.channel, lambda *event: heard.append(event))
    async with of_asyncpg() as (connection, commit):
        await store.insert_on(connection, [NewTask(kind=KIND)])
        await commit()
    await watcher.fetchval("SELECT 1")
    assert heard == []
    await watcher.close()
    await store.close()
