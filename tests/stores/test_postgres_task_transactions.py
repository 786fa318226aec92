"""Bodies that write into PostgreSQL in the transaction of their success."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from tests.conftest import NewEngine
from tests.postgres_server import SCHEMA, administer, distributed_url, server_url, store_url
from tests.stores.callers import make_table
from tests.support import PATIENCE_SECONDS, Gate, until

from synergon import Context, Engine, State
from synergon.errors import TaskFailed

TABLE = f"{SCHEMA}.mine"


@pytest.fixture(params=(store_url, distributed_url), ids=("standard", "distributed"))
async def engine(new_engine: NewEngine, request: pytest.FixtureRequest) -> Engine:
    engine = new_engine(f"{request.param()}&pool=1")
    async with engine:
        make_table()
    return engine


def words() -> list[str]:
    return [word for (word,) in administer(f"SELECT word FROM {TABLE} ORDER BY word")]


async def test_a_coroutine_writes_with_its_success(engine: Engine) -> None:
    @engine.task
    async def child() -> str:
        return "done"

    @engine.task
    async def parent(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            await connection.execute(f"INSERT INTO {TABLE} VALUES ($1)", "by a coroutine")
        await ctx.enqueue(child.call())
        assert words() == [], "nothing is committed before the body returns"
        return "parent"

    async with engine, engine.worker():
        handle = await parent.enqueue()
        assert await handle.result(timeout=PATIENCE_SECONDS) == "parent"
        assert words() == ["by a coroutine"]
        assert len(await engine.tasks(kind="child")) == 1


async def test_a_thread_writes_with_its_success(engine: Engine) -> None:
    @engine.task
    def write(ctx: Context) -> int:
        with ctx.transaction() as connection:
            connection.execute(f"INSERT INTO {TABLE} VALUES ($1)", "by a thread")
            connection.executemany(f"INSERT INTO {TABLE} VALUES ($1)", [("again",), ("and again",)])
            assert [row["word"] for row in connection.fetch(f"SELECT word FROM {TABLE} LIMIT 1")] == ["by a thread"]
            assert connection.fetchrow(f"SELECT count(*) FROM {TABLE}")[0] == 3
            return int(connection.fetchval(f"SELECT count(*) FROM {TABLE}"))

    async with engine, engine.worker():
        assert await (await write.enqueue()).result(timeout=PATIENCE_SECONDS) == 3
        assert words() == ["again", "and again", "by a thread"]


@pytest.mark.parametrize("mistake", ["raises", "commits"])
async def test_a_body_that_fails_has_written_nothing_of_its_own(engine: Engine, mistake: str) -> None:
    @engine.task(retry=1)
    async def fail(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            if mistake == "commits":
                await connection.execute("COMMIT")
                return
            await connection.execute(f"INSERT INTO {TABLE} VALUES ('lost')")
            raise ValueError

    async with engine, engine.worker():
        handle = await fail.enqueue()
        with pytest.raises(TaskFailed, match="leave that to synergon" if mistake == "commits" else "ValueError"):
            await handle.result(timeout=PATIENCE_SECONDS)
        assert (await handle.status()).state is State.FAILED
        assert words() == []


@pytest.mark.parametrize("code", ["53100", "53200"])
async def test_a_full_disk_costs_the_task_nothing(engine: Engine, code: str) -> None:
    @engine.task(retry=1)
    async def write(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            await connection.execute(f"INSERT INTO {TABLE} VALUES ('book')")
            if ctx.claim_no == 1:
                await connection.execute(f"DO $$ BEGIN RAISE 'no space left' USING ERRCODE = '{code}'; END $$")
        return ctx.claim_no

    async with engine, engine.worker():
        handle = await write.enqueue()
        assert await handle.result(timeout=PATIENCE_SECONDS) == 2
        record = await handle.status()
    assert (record.attempts, record.errors) == (1, ())
    assert words() == ["book"]


async def test_a_commit_that_finds_the_disk_full_costs_the_task_nothing(engine: Engine) -> None:
    """A trigger that runs at the commit reports it, once; a sequence goes on through the rollback."""
    administer(
        f"CREATE OR REPLACE FUNCTION {SCHEMA}.fill_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('{SCHEMA}.commits') = 1 THEN RAISE 'no space left' USING ERRCODE = '53100'; END IF; RETURN NULL; "
        f"END $$; CREATE SEQUENCE {SCHEMA}.commits; CREATE CONSTRAINT TRIGGER fill_disk AFTER INSERT ON {TABLE} "
        f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {SCHEMA}.fill_disk()"
    )

    @engine.task(retry=1)
    def write(ctx: Context) -> int:
        with ctx.transaction() as connection:
            connection.execute(f"INSERT INTO {TABLE} VALUES ('book')")
        return ctx.claim_no

    try:
        async with engine, engine.worker():
            handle = await write.enqueue()
            assert await handle.result(timeout=PATIENCE_SECONDS) == 2
            record = await handle.status()
    finally:
        administer(f"DROP TRIGGER fill_disk ON {TABLE}; DROP SEQUENCE {SCHEMA}.commits")
    assert (record.attempts, record.errors) == (1, ())
    assert words() == ["book"]


async def test_a_limit_of_the_server_is_charged(engine: Engine) -> None:
    """It would be met again and again: an operator has set it."""

    @engine.task(retry=1)
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("DO $$ BEGIN RAISE 'temp_file_limit' USING ERRCODE = '53400'; END $$")

    async with engine, engine.worker():
        handle = await write.enqueue()
        with pytest.raises(TaskFailed, match="temp_file_limit"):
            await handle.result(timeout=PATIENCE_SECONDS)


async def test_a_function_that_raises_after_it_was_rolled_back_is_told_why(new_engine: NewEngine) -> None:
    engine = new_engine(store_url(), lease=3)

    @engine.task(retry=1)
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            while True:
                await connection.execute("SELECT 1")
                await asyncio.sleep(0.01)

    async with engine, engine.worker():
        handle = await write.enqueue()
        with pytest.raises(TaskFailed, match=r"ctx.transaction\(\) was held for more than 1 s"):
            await handle.result(timeout=PATIENCE_SECONDS)


async def test_what_a_body_sets_on_its_connection_does_not_meet_the_next(engine: Engine) -> None:
    @engine.task
    async def change(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            before = await connection.fetchval("SHOW search_path")
            await connection.execute("SET search_path = elsewhere")
            return str(before)

    async with engine, engine.worker():
        first = await (await change.enqueue()).result(timeout=PATIENCE_SECONDS)
        assert await (await change.enqueue()).result(timeout=PATIENCE_SECONDS) == first != "elsewhere"


@pytest.mark.parametrize("url", [store_url, distributed_url], ids=("standard", "distributed"))
@pytest.mark.parametrize("pooler", ["false", "true"])
async def test_another_default_isolation_costs_no_task(new_engine: NewEngine, url: Any, pooler: str) -> None:
    engine = new_engine(url(pgbouncer=pooler, options="-c%20default_transaction_isolation%3Dserializable"))

    @engine.task
    async def isolation(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            return str(await connection.fetchval("SHOW transaction_isolation"))

    async with engine.worker():
        handles = await isolation.enqueue_many([() for _ in range(30)])
        found = [await handle.result(timeout=PATIENCE_SECONDS) for handle in handles]
        assert found == ["read committed"] * len(handles)


@pytest.mark.parametrize("url", [store_url, distributed_url], ids=("standard", "distributed"))
async def test_a_commit_that_met_another_transaction_costs_the_task_nothing(new_engine: NewEngine, url: Any) -> None:
    """The body holds a row of the user's and its end needs the task's; somebody holds this one and wants the other."""
    engine = new_engine(f"{url()}&options=-c%20deadlock_timeout%3D50ms")
    gate = Gate()

    @engine.task
    async def write(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            await connection.execute(f"UPDATE {TABLE} SET word = 'by the body'")
        await gate.hold()
        return ctx.claim_no

    async with engine.worker():
        make_table()
        administer(f"INSERT INTO {TABLE} VALUES ('before')")
        handle = await write.enqueue()
        await gate.until_reached()
        other: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
        await other.execute("SET deadlock_timeout = '1h'; BEGIN")  # the body is the one that is undone
        schema = engine._store.address.schema  # type: ignore[attr-defined]  # of this one only
        await other.execute(f"SELECT 1 FROM {schema}.task WHERE id = $1 FOR UPDATE", handle.id)
        wish = asyncio.create_task(other.execute(f"UPDATE {TABLE} SET word = 'by the other'"))
        question = f"SELECT 1 FROM pg_stat_activity WHERE pid = {other.get_server_pid()} AND wait_event_type = 'Lock'"
        await until(lambda: bool(administer(question)))
        gate.open()
        await wish
        await other.execute("COMMIT")
        await other.close()
        assert await handle.result(timeout=PATIENCE_SECONDS) == 2
        record = await handle.status()
        assert (record.attempts, record.errors) == (1, ())
    assert words() == ["by the body"]


async def test_functions_wait_for_a_connection_for_longer_than_a_call_may_take(new_engine: NewEngine) -> None:
    engine = new_engine(f"{store_url()}&pool=2&timeout=1", concurrency=100)
    at_once: list[int] = []
    inside = 0

    @engine.task
    async def write(ctx: Context) -> None:
        nonlocal inside
        async with ctx.transaction() as connection:
            inside += 1
            at_once.append(inside)
            await connection.execute("SELECT pg_sleep(0.3)")
            inside -= 1

    async with engine, engine.worker():
        handles = await write.enqueue_many([()] * 20)
        for handle in handles:
            await handle.result(timeout=PATIENCE_SECONDS)
        assert {(await handle.status()).attempts for handle in handles} == {1}
    assert max(at_once) == 2


async def test_a_function_that_gets_no_connection_runs_again_uncharged(
    new_engine: NewEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("synergon.stores.postgres.connection.TURN_SECONDS", 0.05)
    engine = new_engine(store_url(pool=1))
    gate = Gate()

    @engine.task
    async def write(ctx: Context) -> None:
        async with ctx.transaction():
            await gate.hold()

    async with engine, engine.worker():
        handles = await write.enqueue_many([()] * 2)
        await until(lambda: "is not charged: all 1 connections" in caplog.text)
        gate.open()
        for handle in handles:
            await handle.result(timeout=PATIENCE_SECONDS)
        assert {(await handle.status()).attempts for handle in handles} == {1}
