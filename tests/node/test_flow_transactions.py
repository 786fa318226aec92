"""`flow.enqueue(conn=...)`: the steps of a flow are part of the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.conftest import NewEngine
from tests.postgres_server import distributed_url, server_url
from tests.support import PATIENCE_SECONDS, all_tasks

from synergon import Engine, Flow, KeyConflict, NotAvailable, OptionError, Reason, State, TaskNotFound


@pytest.fixture(name="url", params=("sqlite", "postgres", "distributed"))
def transactional_url(request: pytest.FixtureRequest) -> str:
    """The URL of each store that has transactions."""
    if request.param == "distributed":
        return distributed_url()
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    """The caller's own connection to that database, with a table of the caller's."""
    path = url.removeprefix("sqlite:///")
    connection: Any = sqlite3.connect(path) if path != url else psycopg.connect(server_url())
    connection.execute("CREATE TABLE IF NOT EXISTS flow_orders (name TEXT)")
    connection.execute("DELETE FROM flow_orders")
    connection.commit()
    yield connection
    connection.rollback()
    connection.execute("DROP TABLE flow_orders")
    connection.commit()
    connection.close()


def orders(connection: Any) -> int:
    """How many rows the caller's table has."""
    found: int = connection.execute("SELECT count(*) FROM flow_orders").fetchone()[0]
    connection.rollback()
    return found


def flow_maker(engine: Engine) -> Callable[[], Flow]:
    """Declares the kinds of a flow: a list, one task for each of its items, and their sum. Returns what makes one."""

    @engine.task
    async def numbers(count: int) -> list[int]:
        return list(range(count))

    @engine.task
    async def double(number: int) -> int:
        return 2 * number

    @engine.task
    async def total(doubled: list[int]) -> int:
        return sum(doubled)

    def new_flow() -> Flow:
        flow = engine.flow("sums")
        flow.add(total.call(flow.map(double, over=flow.add(numbers.call(4))).results))
        return flow

    return new_flow


async def is_empty(engine: Engine) -> bool:
    """Whether neither a flow nor a task is stored."""
    return len(await engine.flows.list()) == 0 and await all_tasks(engine) == []


async def test_a_flow_is_stored_when_the_caller_commits_and_runs_to_its_end(engine: Engine, connection: Any) -> None:
    async with engine:
        flow = flow_maker(engine)()
        connection.execute("INSERT INTO flow_orders VALUES ('book')")
        run = await flow.enqueue(conn=connection)
        assert await is_empty(engine)
        connection.commit()
        assert (await run.status()).counts == {State.READY: 1, State.WAITING: 2}
        assert orders(connection) == 1
        async with engine.worker():
            assert await run.result(timeout=PATIENCE_SECONDS) == 12
            record = await run.wait(timeout=PATIENCE_SECONDS)
    assert (record.state, record.counts) == (State.SUCCEEDED, {State.SUCCEEDED: 7})


async def test_a_flow_that_the_caller_rolls_back_never_existed(engine: Engine, connection: Any) -> None:
    async with engine:
        flow = flow_maker(engine)()
        connection.execute("INSERT INTO flow_orders VALUES ('book')")
        run = await flow.enqueue(conn=connection)
        connection.rollback()
        assert await is_empty(engine)
        assert orders(connection) == 0
        with pytest.raises(TaskNotFound, match=f"there is no flow {run.id}"):
            await run.status()
        with pytest.raises(OptionError, match=r"build another one with engine.flow\(...\), also if .* rolled back"):
            await flow.enqueue()


async def test_a_step_whose_key_is_held_raises_and_the_callers_commit_stores_nothing_of_the_flow(
    engine: Engine, connection: Any
) -> None:
    @engine.task(key="{number}")
    async def step(number: int) -> None: ...

    async with engine:
        holder = await step.enqueue(2)
        flow = engine.flow("twice")
        flow.add(step.call(2), after=[flow.add(step.call(1))])
        connection.execute("INSERT INTO flow_orders VALUES ('book')")
        with pytest.raises(KeyConflict, match="use another key") as raised:
            await flow.enqueue(conn=connection)
        assert raised.value.task_id == holder.id
        connection.commit()
        assert orders(connection) == 1
        assert [task.id for task in await all_tasks(engine)] == [holder.id]
        assert len(await engine.flows.list()) == 0
        await holder.cancel()
        run = await flow.enqueue(conn=connection)
        connection.commit()
        assert (await run.status()).counts == {State.READY: 1, State.WAITING: 1}


async def test_a_step_after_a_task_that_does_not_exist_raises_and_nothing_is_stored(
    engine: Engine, connection: Any
) -> None:
    @engine.task
    async def step() -> None: ...

    async with engine:
        flow = engine.flow("after nothing")
        flow.add(step.call())
        flow.add(step.call(), after=[987654321])
        connection.execute("INSERT INTO flow_orders VALUES ('book')")
        with pytest.raises(TaskNotFound, match="987654321"):
            await flow.enqueue(conn=connection)
        connection.commit()
        assert orders(connection) == 1
        assert await is_empty(engine)


@pytest.mark.parametrize("ends_before_the_commit", [True, False])
async def test_steps_after_stored_tasks_wait_for_them(
    engine: Engine, connection: Any, url: str, *, ends_before_the_commit: bool
) -> None:
    """The tasks may end while the caller's transaction is open, which holds no lock on them."""

    @engine.task
    async def step() -> None: ...

    async with engine:
        good, bad = [await step.enqueue() for _ in range(2)]
        flow = engine.flow("after others")
        after_good = flow.add(step.call(), after=[good])
        flow.add(step.call(), after=[after_good])
        flow.add(step.call(), after=[bad])
        flow.add(step.call(), after=[bad], if_dependency_fails="run")
        run = await flow.enqueue(conn=connection)
        if ends_before_the_commit and not url.startswith("sqlite"):  # SQLite has one writer
            await bad.cancel()
        connection.commit()
        await bad.cancel()
        async with engine.worker():
            record = await run.wait(timeout=PATIENCE_SECONDS)
        assert record.counts == {State.SUCCEEDED: 3, State.CANCELLED: 1}
        cancelled = [entry.task for entry in await run.steps() if entry.task.state is State.CANCELLED]
        assert [task.reason for task in cancelled] == [Reason.DEPENDENCY]


def test_the_sync_twin_is_part_of_the_callers_transaction(new_engine: NewEngine, url: str, connection: Any) -> None:
    engine = new_engine(url)
    new_flow = flow_maker(engine)
    with engine:
        new_flow().enqueue_sync(conn=connection)
        connection.rollback()
        assert len(engine.flows.list_sync()) == 0
        run = new_flow().enqueue_sync(conn=connection)
        connection.commit()
        assert run.status_sync().counts == {State.READY: 1, State.WAITING: 2}


async def test_a_store_without_transactions_refuses_it(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    async with engine:
        flow = flow_maker(engine)()
        with pytest.raises(NotAvailable, match="conn= cannot work"):
            await flow.enqueue(conn=object())
        assert await is_empty(engine)
        assert (await flow.enqueue()).id
