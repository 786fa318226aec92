"""What goes wrong between a store and its PostgreSQL in the middle of the work, and how it is told."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from tests.postgres_server import (
    SCHEMA,
    administer,
    distributed_url,
    server_url,
    store_url,
)
from tests.stores.actions import HOUR, KIND, OUTCOMES, PATIENCE_SECONDS, Worker, add, listed, settlement_of, state_of
from tests.stores.one_postgres import grants_of, one_store, ours_only, role, url_of_role  # noqa: F401
from tests.support import until

from synergon import Engine
from synergon.errors import (
    KeyConflict,
    StoreError,
    StoreUnavailable,
)
from synergon.model.lifecycle import State
from synergon.model.tasks import NewTask
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.connection import connect

SUCCEEDED = OUTCOMES["succeeded"]
CLIENTS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"


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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a connection, and whoever has one has all the time that a busy machine takes."""
    monkeypatch.setattr("synergon.stores.postgres.connection.QUEUE_PART", 0.01)


@pytest.mark.usefixtures("impatient")
async def test_a_task_function_waits_for_its_turn() -> None:
    store = PostgresStore(store_url(pool=1))
    await store.open()
    body = await store.begin(10.0)
    await add(store)  # bodies hold connections of their own
    following = asyncio.ensure_future(store.begin(10.0))
    await add(store)
    assert not following.done()
    await body.rollback()
    await (await following).rollback()
    await store.close()


async def test_a_task_function_that_gets_no_connection_is_told_how_to_have_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("synergon.stores.postgres.connection.TURN_SECONDS", 0.05)
    store = PostgresStore(store_url(pool=1))
    await store.open()
    body = await store.begin(10.0)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"all 1 connections .* for ctx.transaction\(\) .* \?pool=2"):
            await store.begin(10.0)
    await body.rollback()
    monkeypatch.undo()
    await (await store.begin(10.0)).rollback()
    await store.close()


async def test_more_callers_than_connections_wait_their_turn() -> None:
    store = PostgresStore(store_url(pool=2))
    await store.open()
    await asyncio.gather(*(store.insert([NewTask(kind=KIND, key=f"k{number}")]) for number in range(40)))
    assert len(await listed(store)) == 40
    await store.close()


@pytest.mark.usefixtures("impatient")
async def test_callers_beyond_the_pool_are_told_in_time_and_nothing_is_lost() -> None:
    store = PostgresStore(store_url(pool=1))
    await store.open()
    ids = [await add(store) for _ in range(3)]
    async with _locked(f"{SCHEMA}.task"):
        calls = [asyncio.create_task(store.cancel([task_id])) for task_id in ids]
        first, *beyond = calls
        rejections = await asyncio.gather(*beyond, return_exceptions=True)
        assert not first.done(), "it has the connection"
    assert all(isinstance(rejection, StoreUnavailable) for rejection in rejections)
    assert all("all 1 connections" in str(rejection) and "?pool=2" in str(rejection) for rejection in rejections)
    assert all("in use for 0.3 s" in str(rejection) for rejection in rejections)
    assert [moved.done for moved in await first] == [True]
    assert [await state_of(store, task_id) for task_id in ids] == [State.CANCELLED, State.READY, State.READY]
    assert all(moved.done for moved in await store.cancel(ids[1:]))
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


@ours_only
@pytest.mark.parametrize("how", ["use", "transaction"])
async def test_a_server_that_stands_still_does_not_hold_who_has_given_up(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("synergon.stores.postgres.connection.ROLLBACK_SHARE", 0.01)
    has_can_accept = asyncio.Event()
    stuck: list[int] = []

    async def ask() -> None:
        async with getattr(store._connections, how)() as connection:
            stuck.append(await connection.fetchval("SELECT pg_backend_pid()"))
            os.kill(stuck[0], signal.SIGSTOP)
            has_can_accept.set()
            await connection.fetchval("SELECT 1")

    call = asyncio.create_task(ask())
    await has_can_accept.wait()
    try:
        call.cancel()
        _, waiting = await asyncio.wait([call], timeout=PATIENCE_SECONDS / 2)
        assert not waiting, "it waits for the server"
        assert call.cancelled()
        await store.now()  # on another connection
    finally:
        os.kill(stuck[0], signal.SIGCONT)


async def test_a_transaction_whose_caller_goes_away_at_its_beginning_is_nothing_to_complain_about(
    store: PostgresStore,
) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def begin() -> None:
        async with store._connections.transaction():
            pass

    for turns in range(200):  # one of them is when BEGIN is under way
        call = asyncio.create_task(begin())
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    assert complaints == []


async def test_whose_connection_an_operator_ends_is_told_what_happened_and_what_to_do(store: PostgresStore) -> None:
    task_id = await add(store)
    async with _locked(f"{SCHEMA}.task"):
        call = asyncio.create_task(store.cancel([task_id]))
        waiting = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await until(lambda: bool(administer(waiting)))
        with pytest.raises(StoreUnavailable, match=r"an operator said so.*make the call again") as refused:
            await call
    assert "administrator command" not in str(refused.value), "these are the server's words"
    (moved,) = await store.cancel([task_id])
    assert moved.done


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
    with role("worker_role", *grants_of("worker")):
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
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await keeper.renew(worker.node_id, HOUR)
    finally:
        os.kill(stuck, signal.SIGCONT)
    await keeper.close()


@asynccontextmanager
async def line_that_hangs_up_late(is_cut: asyncio.Event) -> AsyncIterator[tuple[str, list[bool]]]:
    """The server's URL by way of a line: when it is cut, the client hears the server's last words and no end. The list
    says of each connection whether the server has ended it."""
    server = f"{parse_qs(urlsplit(server_url()).query)['host'][0]}/.s.PGSQL.5432"
    calls: list[asyncio.Task[Any]] = []
    writers: list[asyncio.StreamWriter] = []
    has_ended: list[bool] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
            if not is_cut.is_set():
                writer.close()

    async def carry_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(has_ended)
        has_ended.append(False)
        await carry(reader, writer)
        has_ended[number] = True

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(server)
        writers.extend((writer, inner_writer))
        calls.append(asyncio.create_task(carry_answers(inner_reader, writer)))
        calls.append(asyncio.create_task(carry(reader, inner_writer)))

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as line:
        port = line.sockets[0].getsockname()[1]
        yield f"postgresql://postgres:@127.0.0.1:{port}/postgres?schema={SCHEMA}", has_ended
        for call in calls:
            call.cancel()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


@ours_only
async def test_a_connection_whose_end_was_announced_and_has_not_come_is_an_outage_and_not_a_refusal() -> None:
    store_url()
    is_cut = asyncio.Event()
    async with line_that_hangs_up_late(is_cut) as (url, has_ended):
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
        await until(lambda: all(has_ended))
        await asyncio.sleep(0.05)  # its last words are on the client's socket: this loop reads them first
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
    with pytest.raises(StoreError, match="failed and the task function went on"):
        await body.finish([settlement_of(claim, SUCCEEDED)])
    body = await store.begin(10.0)
    async with body.connection.transaction():
        await body.connection.execute("SELECT 1")
    (verdict,) = await body.finish([settlement_of(claim, SUCCEEDED)])
    assert verdict.state is not None


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


@ours_only
async def test_a_server_that_says_nothing_at_the_end_of_the_first_connection_does_not_keep_an_engine_from_it() -> None:
    store_url()
    never_ends = asyncio.Event()
    never_ends.set()
    async with line_that_hangs_up_late(never_ends) as (url, _):
        engine = Engine(f"{url}&timeout=2")

        @engine.task
        async def work() -> int:
            return 7

        async with engine.worker():
            assert await (await work.enqueue()).result(timeout=PATIENCE_SECONDS) == 7
        assert (await PostgresStore(f"{url}&timeout=2").schema_versions()).found == 1


@asynccontextmanager
async def silent_host() -> AsyncIterator[str]:
    """A folder with a socket at which nothing ever answers, as a host after a power cut."""
    folder = tempfile.mkdtemp(prefix="synergon-silent-")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/.s.PGSQL.5432")
        listening.listen(100)
        yield folder
    shutil.rmtree(folder)


@ours_only
async def test_a_host_that_is_silent_does_not_keep_an_engine_from_the_next_one() -> None:
    async with silent_host() as silent:
        both = store_url(timeout=3, target_session_attrs="read-write").replace("host=", f"host={silent},")
        engine = Engine(both)

        @engine.task
        async def work() -> int:
            return 7

        async with engine.worker():
            assert await (await work.enqueue()).result(timeout=PATIENCE_SECONDS) == 7
            store = cast("PostgresStore", engine._store)
            assert "silent" not in store.address.hosts.dsns[0], "the host that answers is asked first from now on"


@ours_only
async def test_hosts_of_which_none_answers_are_an_outage() -> None:
    async with silent_host() as silent:
        store = PostgresStore(f"postgresql://postgres@/postgres?host={silent},{silent}/nowhere&timeout=0.5")
        with pytest.raises(StoreUnavailable):
            await store.open()
