"""What goes wrong between a store and its PostgreSQL, and how it is told."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from tests.postgres_server import (
    DISTRIBUTED_SCHEMA,
    IS_OURS,
    SCHEMA,
    TABLES,
    administer,
    distributed_url,
    folder,
    server_url,
    store_url,
    url_with,
)
from tests.stores.actions import HOUR, KIND, OUTCOMES, Worker, add, listed, settlement_of, state_of

from synergon import Engine
from synergon.control_records import NewGroup, NewOrder
from synergon.errors import (
    ConfigurationError,
    DataRefused,
    KeyConflict,
    OptionError,
    SchemaError,
    StoreError,
    StoreUnavailable,
)
from synergon.lifecycle import State
from synergon.limit_records import NewLimit, NewProvider, NewRate, NewServer
from synergon.records import Cutoffs, NewTask, Room
from synergon.stores import open_store
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.connection import connect

SUCCEEDED = OUTCOMES["succeeded"]

ours_only = pytest.mark.skipif(not IS_OURS, reason="the settings of the server that was named are not ours to change")


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(store_url())
    await store.open()
    yield store
    await store.close()


def url_of_role(role: str, password: str = "", **parameters: object) -> str:
    return url_with(**parameters).replace("postgres:@", f"{role}:{password}@", 1)


@contextmanager
def role(name: str, *grants: str) -> Iterator[None]:
    administer(f"DROP ROLE IF EXISTS {name}")
    administer(f"CREATE ROLE {name} LOGIN PASSWORD 'right'")
    for grant in grants:
        administer(f"GRANT {grant} TO {name}")
    yield
    administer(f"DROP OWNED BY {name}")
    administer(f"DROP ROLE {name}")


# ---------------------------------------------------------------- URLs


def test_our_parameters_are_taken_from_the_url_and_the_rest_goes_to_the_driver() -> None:
    address = Address.parse("postgresql://me:secret@host:1/db?schema=jobs&pool=3&sslmode=require&timeout=2.5")
    assert address.dsn == "postgresql://me:secret@host:1/db?sslmode=require"
    assert (address.schema, address.pool, address.call_seconds, address.channel) == ("jobs", 3, 2.5, "jobs_wake")
    assert address.listens
    assert address.place == "postgresql://me@host:1/db"


@pytest.mark.parametrize(
    "parameters",
    [
        *("schema=Jobs", "schema=a;b", "schema=pg_jobs", f"schema={'a' * 49}"),
        *("pool=0", "pool=x", "timeout=0", "timeout=x", "pgbouncer=maybe", "listen=2"),
    ],
)
def test_a_bad_parameter_is_refused_where_it_is_written(parameters: str) -> None:
    name = parameters.partition("=")[0]
    with pytest.raises(ConfigurationError, match=name):
        open_store(f"postgresql://host/db?{parameters}")


# ---------------------------------------------------------------- connecting


@ours_only
async def test_a_wrong_password_is_no_outage() -> None:
    with role("careless"):
        rules = folder() / "pg_hba.conf"
        before = rules.read_text()
        rules.write_text("local all careless scram-sha-256\n" + before)
        administer("SELECT pg_reload_conf()")
        try:
            store = PostgresStore(url_of_role("careless", "wrong"))
            with pytest.raises(StoreError, match="check the user and password") as caught:
                await _open_until_refused(store)
            assert "wrong" not in str(caught.value)
            assert not isinstance(caught.value, StoreUnavailable)
        finally:
            rules.write_text(before)
            administer("SELECT pg_reload_conf()")


async def _open_until_refused(store: PostgresStore) -> None:
    """The server reads its rules a moment after it was told to; until then anybody may come in."""
    for _ in range(500):
        try:
            await store.open()
            await store.close()
        except SchemaError:
            await asyncio.sleep(0.01)


@ours_only
async def test_a_missing_database_is_no_outage() -> None:
    store = PostgresStore(server_url().replace("/postgres?", "/nowhere?"))
    with pytest.raises(StoreError, match="CREATE DATABASE") as caught:
        await store.open()
    assert not isinstance(caught.value, StoreUnavailable)


async def test_a_server_that_is_not_there_may_come_back(tmp_path: Path) -> None:
    for url in (f"postgresql:///db?host={tmp_path}", "postgresql://localhost:1/db"):
        with pytest.raises(StoreUnavailable, match="not available"):
            await PostgresStore(url).open()


def test_a_misspelt_parameter_is_refused_where_it_is_written() -> None:
    with pytest.raises(OptionError, match=r"no parameter 'pol'; there are schema, pool, .*sslmode.*application_name"):
        Engine("postgresql://host/db?sslmode=require&pol=3")


async def test_settings_of_the_server_may_be_in_the_url(store: PostgresStore) -> None:
    for setting in ("application_name=shop&TimeZone=UTC", "options=-c%20application_name%3Dshop"):
        named = PostgresStore(f"{store.url}&{setting}")
        await named.open()
        await named.nodes()
        assert administer("SELECT 1 FROM pg_stat_activity WHERE application_name = 'shop'")
        await named.close()


# ---------------------------------------------------------------- the schema


async def test_a_newer_schema_is_refused(store: PostgresStore) -> None:
    administer(f"UPDATE {SCHEMA}.meta SET value = '999' WHERE name = 'schema_version'")
    try:
        with pytest.raises(SchemaError, match="upgrade synergon"):
            await PostgresStore(store.url).open()
        versions = await store.schema_versions()
        assert (versions.found, versions.wanted) == (999, 1)
    finally:
        administer(f"UPDATE {SCHEMA}.meta SET value = '1' WHERE name = 'schema_version'")


@ours_only
async def test_a_role_that_may_not_create_is_told_what_to_run() -> None:
    with role("guest"):
        store = PostgresStore(url_of_role("guest", schema="not_there"))
        with pytest.raises(SchemaError, match="synergon migrate"):
            await store.open()
        assert (await store.schema_versions()).found is None


@pytest.mark.parametrize("isolation", ["read%5C%20committed", "serializable"])
async def test_many_nodes_may_create_the_schema_at_once(isolation: str) -> None:
    administer("DROP SCHEMA IF EXISTS crowded CASCADE")
    options = f"-c%20default_transaction_isolation%3D{isolation}"
    stores = [PostgresStore(url_with(schema="crowded", pool=1, options=options)) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(add(store) for store in stores))
    assert len(await listed(stores[0])) == 8
    for store in stores:
        await store.close()
    administer("DROP SCHEMA crowded CASCADE")


async def test_the_printed_sql_makes_what_an_engine_needs() -> None:
    administer("DROP SCHEMA IF EXISTS by_hand CASCADE")
    store = PostgresStore(url_with(schema="by_hand"))
    administer(store.schema_sql())
    assert (await store.schema_versions()).found == (await store.schema_versions()).wanted
    await store.open()
    await add(store)
    await store.close()
    administer("DROP SCHEMA by_hand CASCADE")


# ---------------------------------------------------------------- roles

WORKER_GRANTS = (
    f"USAGE ON SCHEMA {SCHEMA}",
    f"SELECT ON {SCHEMA}.meta",
    f"SELECT, UPDATE ON {SCHEMA}.turn",
    f"SELECT, INSERT, UPDATE, DELETE ON {', '.join(f'{SCHEMA}.{table}' for table in TABLES)}",
)
PRODUCER_GRANTS = (
    f"USAGE ON SCHEMA {SCHEMA}",
    f"SELECT ON {SCHEMA}.meta",
    f"SELECT, INSERT, UPDATE ON {SCHEMA}.task, {SCHEMA}.task_limit, {SCHEMA}.task_group",
    f"SELECT, INSERT, UPDATE, DELETE ON {SCHEMA}.provider, {SCHEMA}.server",
    f"SELECT ON {SCHEMA}.rate",
    f"SELECT, INSERT ON {SCHEMA}.queue",
    f"SELECT, UPDATE ON {SCHEMA}.turn",
    f"SELECT ON {SCHEMA}.history",
)


@ours_only
@pytest.mark.parametrize("profile", ["standard", "distributed"])
async def test_a_worker_needs_no_more_than_the_guide_grants(profile: str) -> None:
    schema, url = (SCHEMA, store_url()) if profile == "standard" else (DISTRIBUTED_SCHEMA, distributed_url())
    owner = PostgresStore(url)
    await owner.open()
    await owner.close()
    with role("worker_role", *(grant.replace(SCHEMA, schema) for grant in WORKER_GRANTS)):
        least = PostgresStore(url_of_role("worker_role", schema=schema, profile=profile))
        await least.open()
        worker = await Worker.start(least)
        await add(least, key="a", on_conflict="replace")
        await least.insert([NewTask(kind="other", key="b"), NewTask(kind="other", key="c")])
        (claim,) = await worker.claim()
        assert (await worker.finish(claim, SUCCEEDED)).state is State.SUCCEEDED
        await least.wake(10)
        await least.reap([], 10)
        await least.retry([claim.id])
        await least.delete([claim.id])
        await least.pause(["default"])
        await least.resume(["default"])
        keeper = await least.keeper()
        assert await keeper.renew(worker.node_id, HOUR)
        await keeper.close()
        await use_limits(least)
        await least.unregister(worker.node_id)
        await least.close()


async def use_limits(store: PostgresStore) -> None:
    """What a producer may do with limits, and what only a worker does."""
    await declare_all(store)
    worker = Worker(store, "node-1")
    room = Room(kind="limited", count=1, limits=("license",), provider="gpu", is_rated=True)
    (claim,) = await worker.claim_rooms(room)
    assert claim.server == "a"
    await store.finish([settlement_of(claim, SUCCEEDED, server=("gpu", "a"), is_server_well=False)])
    await store.set_limit("license", 2)
    await store.order(NewOrder(verb="set_servers", subject="gpu", value=[["b", 1]], who="ada"))
    await store.prune(Cutoffs(succeeded=0, failed=0, cancelled=0), 10)


async def declare_all(store: PostgresStore) -> None:
    """Limits, a pool, a group, and tasks in lines."""
    limits = [NewLimit(name="license", value=1), NewLimit(name="key:limited", value=1, rate=NewRate(every=HOUR))]
    for address in ("b", "a"):
        servers = (NewServer(address=address, capacity=1),)
        await store.declare(limits, [NewProvider(name="gpu", servers=servers)])
    await store.insert([NewTask(kind="limited", limit_key="ada")] * 2)
    await store.insert([NewTask(kind="endless", limit_key="ada")] * 2)
    await store.open_group(NewGroup(name="all", tasks=(NewTask(kind="other"),), then=NewTask(kind="other")))


@ours_only
async def test_a_producer_needs_no_more_than_the_guide_grants(store: PostgresStore) -> None:
    with role("producer_role", *PRODUCER_GRANTS):
        least = PostgresStore(url_of_role("producer_role", schema=SCHEMA))
        await least.open()
        await add(least)
        await least.insert([NewTask(kind="other", key="b"), NewTask(kind="other", key="c")])
        task_id = await add(least, key="a")
        assert await add(least, key="a", on_conflict="replace") == task_id
        assert (await least.get([task_id]))[0] is not None
        await declare_all(least)
        with pytest.raises(StoreError, match="GRANT"):
            await Worker.start(least)
        await least.close()


@ours_only
async def test_a_right_that_was_taken_away_is_no_fault_of_the_outcome(store: PostgresStore) -> None:
    with role("worker_role", *WORKER_GRANTS):
        least = PostgresStore(url_of_role("worker_role", schema=SCHEMA))
        await least.open()
        worker = await Worker.start(least)
        await add(least)
        (claim,) = await worker.claim()
        administer(f"REVOKE INSERT ON {SCHEMA}.history FROM worker_role")
        with pytest.raises(StoreError, match="GRANT") as caught:
            await worker.finish(claim, SUCCEEDED)
        assert not isinstance(caught.value, DataRefused)
        administer(f"GRANT INSERT ON {SCHEMA}.history TO worker_role")
        assert (await worker.finish(claim, SUCCEEDED)).state is State.SUCCEEDED
        await least.close()


async def test_data_that_the_database_will_never_take_is_told_apart(store: PostgresStore) -> None:
    with pytest.raises(DataRefused, match="refused a statement"):
        await store.insert([NewTask(kind="a\0b")])
    with pytest.raises(DataRefused, match="refused a statement"):
        await store.insert([NewTask(kind="a", priority=2**70)])


# ---------------------------------------------------------------- trouble in the middle


@ours_only
@pytest.mark.parametrize("url", [store_url, distributed_url], ids=["standard", "distributed"])
async def test_a_read_only_database_may_become_writable(url: Callable[[], str]) -> None:
    store = PostgresStore(url())
    await store.open()
    worker = await Worker.start(store)
    keeper = await store.keeper()
    with read_only_database():
        bodies = [await store.begin(10.0) for _ in range(2)]
        assert not any(await asyncio.gather(*(_may_write(body.connection) for body in bodies)))
        for body in bodies:
            await body.rollback()
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="read-only"):
                await add(store)
            with pytest.raises(StoreUnavailable, match="read-only"):
                await keeper.renew(worker.node_id, HOUR)
        readers = [store.nodes() for _ in range(6)]  # which go well, and leave their connections behind
        assert [len(nodes) for nodes in await asyncio.gather(*readers)] == [1] * 6
    with suppress(StoreUnavailable):
        await add(store)
    await asyncio.gather(*(store.insert([NewTask(kind=KIND, key=f"k{number}")]) for number in range(8)))
    assert await keeper.renew(worker.node_id, HOUR)
    for _ in range(2):
        body = await store.begin(10.0)
        assert await _may_write(body.connection)
        await body.rollback()
    await keeper.close()
    await store.close()


@contextmanager
def read_only_database() -> Iterator[None]:
    """As an administrator makes it for a while: connections that are made meanwhile stay read-only."""
    administer("ALTER DATABASE postgres SET default_transaction_read_only = on")
    try:
        administer(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        yield
    finally:
        administer("ALTER DATABASE postgres RESET default_transaction_read_only")


async def _may_write(connection: Any) -> bool:
    return str(await connection.fetchval("SHOW transaction_read_only")) == "off"


async def test_a_pool_that_is_used_up_says_how_to_have_more() -> None:
    store = PostgresStore(store_url(pool=1, timeout=0.5))
    await store.open()
    body = await store.begin(10.0)
    await add(store)  # bodies hold connections of their own
    with pytest.raises(StoreUnavailable, match=r"all 1 connections .* \?pool=2"):
        await store.begin(10.0)
    await body.rollback()
    await (await store.begin(10.0)).rollback()
    await store.close()


async def test_more_callers_than_connections_wait_their_turn() -> None:
    store = PostgresStore(store_url(pool=2))
    await store.open()
    await asyncio.gather(*(store.insert([NewTask(kind=KIND, key=f"k{number}")]) for number in range(40)))
    assert len(await listed(store)) == 40
    await store.close()


async def test_callers_beyond_the_pool_are_told_in_time_and_nothing_is_lost() -> None:
    store = PostgresStore(store_url(pool=1, timeout=1))
    await store.open()
    ids = [await add(store) for _ in range(3)]
    async with _locked(f"{SCHEMA}.task"):
        refusals = await asyncio.gather(*(store.cancel([task_id]) for task_id in ids), return_exceptions=True)
    assert all(isinstance(refusal, StoreUnavailable) for refusal in refusals)
    beyond = [refusal for refusal in refusals if "all 1 connections" in str(refusal)]
    assert len(beyond) == 2, "one had the connection"
    assert all("in use for 0.9 s" in str(refusal) and "?pool=2" in str(refusal) for refusal in beyond)
    assert [await state_of(store, task_id) for task_id in ids] == [State.READY] * 3
    assert all(moved.done for moved in await store.cancel(ids))
    await store.close()


async def test_a_call_that_takes_too_long_is_given_up_and_the_next_one_works() -> None:
    store = PostgresStore(store_url(timeout=0.5))
    await store.open()
    task_id = await add(store)
    async with _locked(f"{SCHEMA}.task"):
        with pytest.raises(StoreUnavailable):
            await store.cancel([task_id])
    (moved,) = await store.cancel([task_id])
    assert moved.done
    await store.close()


class _locked:  # noqa: N801  reads like a keyword
    """A table that nobody else can use."""

    def __init__(self, table: str) -> None:
        self._table = table

    async def __aenter__(self) -> None:
        self._connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
        await self._connection.execute(f"BEGIN; LOCK TABLE {self._table}")

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()


async def test_connections_that_were_cut_are_made_again(store: PostgresStore) -> None:
    worker = await Worker.start(store)
    keeper = await store.keeper()
    assert await keeper.renew(worker.node_id, HOUR)
    administer(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    failures = 0
    while True:
        try:
            await add(store)
            assert await keeper.renew(worker.node_id, HOUR)
            break
        except StoreUnavailable:
            failures += 1
            assert failures < 20
    await keeper.close()


async def test_a_table_that_a_newer_release_has_widened_is_read_on(store: PostgresStore) -> None:
    task_id = await add(store)
    worker = await Worker.start(store)
    keeper = await store.keeper()
    for _ in range(2):
        await state_of(store, task_id)
        await keeper.renew(worker.node_id, HOUR)
        await store.nodes()
    administer(f"ALTER TABLE {SCHEMA}.task ADD COLUMN newer int; ALTER TABLE {SCHEMA}.node ADD COLUMN newer int")
    try:
        assert await state_of(store, task_id) is State.READY
        assert await keeper.renew(worker.node_id, HOUR)
        assert len(await store.nodes()) == 1
        assert (await worker.claim_one()).id == task_id
    finally:
        administer(f"ALTER TABLE {SCHEMA}.task DROP COLUMN newer; ALTER TABLE {SCHEMA}.node DROP COLUMN newer")
    assert await state_of(store, task_id) is State.RUNNING
    await keeper.close()


@ours_only
async def test_a_role_that_may_not_log_in_for_a_while_is_nothing_the_driver_complains_of(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    with role("worker_role", *WORKER_GRANTS):
        least = PostgresStore(url_of_role("worker_role", schema=SCHEMA))
        await least.open()
        await least.nodes()
        administer("ALTER ROLE worker_role NOLOGIN")
        administer("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker_role'")
        for _ in range(20):
            with pytest.raises(StoreError):
                await least.nodes()
            await asyncio.sleep(0.02)
        administer("ALTER ROLE worker_role LOGIN")
        assert await least.nodes() == []
        await least.close()
    assert caplog.records == []


CLIENTS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"


@ours_only
async def test_a_lease_whose_connection_is_stuck_is_renewed_on_another_one(store: PostgresStore) -> None:
    worker = await Worker.start(store)
    before = administer(CLIENTS)
    keeper = await store.keeper()
    assert await keeper.renew(worker.node_id, HOUR)
    ((stuck,),) = set(administer(CLIENTS)) - set(before)
    os.kill(stuck, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await keeper.renew(worker.node_id, HOUR)
        async with asyncio.timeout(10):
            assert await keeper.renew(worker.node_id, HOUR)
    finally:
        os.kill(stuck, signal.SIGCONT)
    await keeper.close()


@asynccontextmanager
async def line_that_hangs_up_late(is_cut: asyncio.Event) -> AsyncIterator[str]:
    """The server's URL by way of a line: when it is cut, the client hears the server's last words and no end."""
    socket = f"{parse_qs(urlsplit(server_url()).query)['host'][0]}/.s.PGSQL.5432"
    calls: list[asyncio.Task[Any]] = []
    writers: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
            if not is_cut.is_set():
                writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(socket)
        writers.extend((writer, inner_writer))
        calls.append(asyncio.create_task(carry(inner_reader, writer)))
        calls.append(asyncio.create_task(carry(reader, inner_writer)))

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as line:
        port = line.sockets[0].getsockname()[1]
        yield f"postgresql://postgres:@127.0.0.1:{port}/postgres?schema={SCHEMA}"
        for call in calls:
            call.cancel()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


@ours_only
async def test_a_connection_whose_end_was_announced_and_has_not_come_is_an_outage_and_not_a_refusal() -> None:
    store_url()
    is_cut = asyncio.Event()
    async with line_that_hangs_up_late(is_cut) as url:
        store = PostgresStore(url)
        await store.open()
        worker = await Worker.start(store)
        keeper = await store.keeper()
        assert await keeper.renew(worker.node_id, HOUR)
        await add(store)
        is_cut.set()
        administer(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        await asyncio.sleep(0.2)  # the last words of the server are on their way
        is_cut.clear()
        for call in (store.now, lambda: keeper.renew(worker.node_id, HOUR)):
            with pytest.raises(StoreUnavailable):
                await call()
            await call()
        await keeper.close()
        await store.close()


async def test_whoever_is_gone_in_the_middle_of_a_transaction_leaves_no_locks_behind(store: PostgresStore) -> None:
    question = "SHOW idle_in_transaction_session_timeout"
    async with store._connections.transaction() as connection:
        assert await connection.fetchval(question) == "5s"
    alone = await connect(store.address)
    assert await alone.fetchval(question) == "5s"
    await alone.close()
    body = await store.begin(10.0)
    assert await body.connection.fetchval(question) == "11s", "it may hold its locks for as long as it was told"
    await body.rollback()


async def test_two_calls_in_each_others_way_both_succeed(store: PostgresStore) -> None:
    async def insert(keys: list[str]) -> None:
        await store.insert([NewTask(kind=KIND, key=key, on_conflict="replace") for key in keys])

    keys = [f"k{number}" for number in range(8)]
    await asyncio.gather(*(insert(order) for order in [keys, keys[::-1]] * 10))
    assert len(await listed(store)) == len(keys)


async def test_what_cannot_be_stored_fails_its_caller_and_nobody_else(store: PostgresStore) -> None:
    calls = [store.insert([NewTask(kind=KIND)]) for _ in range(5)]
    bad = store.insert([NewTask(kind="no\0kind")])
    *good, refused = await asyncio.gather(*calls, bad, return_exceptions=True)
    assert isinstance(refused, StoreError)
    assert not isinstance(refused, StoreUnavailable)
    assert len(await listed(store)) == len(good) == 5


async def test_a_body_that_goes_on_after_a_failed_statement_is_told(store: PostgresStore) -> None:
    worker = await Worker.start(store)
    await add(store)
    claim = await worker.claim_one()
    body = await store.begin(10.0)
    with pytest.raises(asyncpg.PostgresError):
        await body.connection.execute("SELECT 1 / 0")
    with pytest.raises(StoreError, match="failed and the body went on"):
        await body.finish(settlement_of(claim, SUCCEEDED))
    body = await store.begin(10.0)
    async with body.connection.transaction():
        await body.connection.execute("SELECT 1")
    assert (await body.finish(settlement_of(claim, SUCCEEDED))).state is not None


# ---------------------------------------------------------------- a pooler in between


async def test_behind_a_pooler_nothing_is_prepared_beyond_a_transaction() -> None:
    store = PostgresStore(store_url(pgbouncer="true", pool=1))
    assert not store.capabilities.listens
    await store.open()
    worker = await Worker.start(store)
    for _ in range(3):
        await add(store)
        await worker.run(SUCCEEDED)
        await store.counts()
    with pytest.raises(KeyConflict):
        await store.insert([NewTask(kind=KIND, key="a", on_conflict="raise") for _ in range(2)])
    async with store._connections.transaction() as connection:
        assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
    await store.close()
