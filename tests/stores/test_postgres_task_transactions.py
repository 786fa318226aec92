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
        schema = engine.store.address.schema  # type: ignore[attr-defined]  # of this one only
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
