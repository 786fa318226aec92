"""Bodies that write into PostgreSQL in the transaction of their success."""

from __future__ import annotations

import pytest
from tests.conftest import NewEngine
from tests.postgres_server import SCHEMA, administer, distributed_url, store_url
from tests.stores.callers import make_table
from tests.support import PATIENCE_SECONDS

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
