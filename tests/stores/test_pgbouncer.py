"""`?pgbouncer=true` against a real PgBouncer, in transaction mode with fewer server connections than clients.

What tasks go through is taken from the conformance suite; what an engine adds to it (its lease, transactions of bodies
and of callers, no LISTEN) is looked at here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
from tests.pgbouncer_server import pooled_url
from tests.postgres_server import SCHEMA, administer, empty, server_url
from tests.stores import test_claim, test_finish, test_insert, test_leases_and_reaping
from tests.support import PATIENCE_SECONDS, Renewals, until

from synergon import Context, Engine, StoreError, StoreUnavailable
from synergon.stores.base import Store
from synergon.stores.postgres import PostgresStore

for conforming in (test_claim, test_finish, test_insert, test_leases_and_reaping):
    globals().update({name: test for name, test in vars(conforming).items() if name.startswith("test_")})


@pytest.fixture(scope="module")
def pooler() -> Iterator[str]:
    """A PgBouncer for all tests of this module."""
    with pooled_url() as url:
        yield url


@pytest.fixture
def url(pooler: str) -> str:
    """The way through it, with nothing at its end."""
    empty(SCHEMA)
    return pooler


@pytest.fixture
def unopened(url: str) -> Store:
    """The one store of these tests, in place of all that the conformance suite is for."""
    return PostgresStore(url)


@pytest.fixture
async def orders(url: str) -> AsyncIterator[str]:
    """A table of the user's own."""
    table = f"{SCHEMA}.audit"
    administer(f"CREATE TABLE {table} (name text)")
    yield table
    administer(f"DROP TABLE {table}")


async def test_a_node_works_keeps_its_lease_and_does_not_listen(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synergon.node.liveness.lease.HEARTBEATS_PER_LEASE", 30)  # renewed every second
    engine = Engine(url, sweep=3600, concurrency=50)
    way = Renewals(engine)

    @engine.task
    async def double(number: int) -> int:
        await asyncio.sleep(0.01)
        return 2 * number

    async with engine.worker() as node:
        first_id = node.id
        for _ in range(4):
            handles = await double.enqueue_many([(number,) for number in range(200)])
            assert [await handle.result(timeout=30) for handle in handles] == [2 * number for number in range(200)]
        await until(lambda: way.count >= 3)
        assert node.id == first_id
        assert not engine._store.capabilities.listens
        assert administer("SELECT count(*) FROM pg_stat_activity WHERE query ~ '^LISTEN'") == [(0,)]
        assert administer("SELECT count(*) FROM pg_stat_activity WHERE client_addr IS NOT NULL") == [(0,)]
    troubles = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert troubles == []


async def test_engines_behind_it_tell_each_other_of_work(url: str) -> None:
    worker, producer = Engine(url, sweep=3600), Engine(url, sweep=3600)

    @worker.task
    async def quick() -> int:
        return 7

    async with worker.worker(), producer:
        for _ in range(3):
            (handle,) = await producer.enqueue([producer.call("quick")])
            assert await handle.result(timeout=30) == 7


async def test_a_body_commits_its_writes_with_its_success(url: str, orders: str) -> None:
    engine = Engine(url)

    @engine.task
    async def order(ctx: Context, name: str, *, fails: bool = False) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(f"INSERT INTO {orders} VALUES ($1)", name)
        if fails:
            raise ValueError(name)

    async with engine.worker():
        handles = [
            await order.with_options(retry=1).enqueue(name, fails=fails)
            for name, fails in {"bread": False, "salt": True, "milk": False}.items()
        ]
        for handle in handles:
            await engine.wait(handle.id, timeout=30)
    assert administer(f"SELECT name FROM {orders} ORDER BY name") == [("bread",), ("milk",)]


@pytest.mark.parametrize("way", ["through the pooler", "past the pooler"])
async def test_a_task_in_the_callers_transaction_is_found_by_the_sweep_after_the_commit(
    url: str, orders: str, way: str
) -> None:
    engine = Engine(url)  # the sweep as it is by default, which a caller's transaction makes quick
    ran = asyncio.Event()

    @engine.task
    async def note() -> None:
        ran.set()

    async with engine.worker():
        connection: Any = await asyncpg.connect(
            url.partition("?")[0] if way == "through the pooler" else server_url(), statement_cache_size=0
        )
        try:
            async with connection.transaction():
                await connection.execute(f"INSERT INTO {orders} VALUES ('bread')")
                await engine.enqueue([note.call()], conn=connection)
                assert administer(f"SELECT count(*) FROM {SCHEMA}.task") == [(0,)], "not committed yet"
            await asyncio.wait_for(ran.wait(), PATIENCE_SECONDS)
        finally:
            await connection.close()


async def test_work_goes_on_when_the_pooler_has_lost_its_connections(url: str) -> None:
    engine = Engine(url, sweep=0.2)
    has_started, may_end = asyncio.Event(), asyncio.Event()

    @engine.task
    async def slow() -> str:
        has_started.set()
        await may_end.wait()
        return "done"

    async with engine.worker():
        handle = await slow.enqueue()
        await asyncio.wait_for(has_started.wait(), PATIENCE_SECONDS)
        administer(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        may_end.set()
        assert await handle.result(timeout=30) == "done"
        assert await (await slow.enqueue()).result(timeout=30) == "done"


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_the_switch_is_right_in_every_mode_and_whoever_forgets_it_is_told_at_once(mode: str) -> None:
    with pooled_url(mode) as url:
        forgetful = Engine(url.replace("&pgbouncer=true", ""))
        with pytest.raises(
            StoreError, match=r"unsupported startup parameter: .*add pgbouncer=true to the URL"
        ) as caught:
            await asyncio.wait_for(forgetful.run(drain=True), 30)
        assert not isinstance(caught.value, StoreUnavailable)
        with pytest.raises(StoreError, match="lock_timeout; leave that parameter out of the URL"):
            await PostgresStore(f"{url}&lock_timeout=1000").open()
        engine = Engine(f"{url}&pool=1")

        @engine.task
        async def double(ctx: Context, number: int) -> int:
            async with ctx.transaction():
                return 2 * number

        async with engine.worker():
            assert await (await double.enqueue(21)).result(timeout=30) == 42
