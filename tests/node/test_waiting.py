"""Whoever waits for a result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle, islice
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, Gate, make_troubled, until, until_state

from synergon import Engine, OptionError, ResultTimeout, State, StoreError, TaskDeleted
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.postgres import PostgresStore


async def test_the_waiting_may_end_before_the_task_which_goes_on(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def hold() -> str:
        await gate.hold()
        return "ran"

    async with engine.worker():
        handle = await hold.enqueue()
        await gate.until_reached()
        began = time.monotonic()
        with pytest.raises(ResultTimeout, match=rf"task {handle.id} had not ended after 0.05 s; it goes on") as error:
            await handle.result(timeout=0.05)
        assert isinstance(error.value, TimeoutError)
        assert time.monotonic() - began < PATIENCE_SECONDS / 2
        assert (await handle.status()).state is State.RUNNING
        with pytest.raises(ResultTimeout):
            await handle.result(timeout=0)
        gate.open()
        assert await handle.result(PATIENCE_SECONDS) == "ran"
        assert await handle.result(PATIENCE_SECONDS) == "ran", "and again, from the history"


async def test_many_may_wait_for_one_task(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def hold() -> str:
        await gate.hold()
        return "ran"

    async with engine.worker():
        handle = await hold.enqueue()
        waiters = [asyncio.create_task(handle.result(PATIENCE_SECONDS)) for _ in range(200)]
        impatient = [asyncio.create_task(handle.result(0.01)) for _ in range(20)]
        given_up = [asyncio.create_task(handle.result()) for _ in range(20)]
        await gate.until_reached()
        for waiter in given_up:
            waiter.cancel()
        assert all(
            isinstance(error, ResultTimeout) for error in await asyncio.gather(*impatient, return_exceptions=True)
        )
        gate.open()
        assert await asyncio.gather(*waiters) == ["ran"] * 200
        assert all(waiter.cancelled() for waiter in given_up)


async def test_many_may_wait_for_many_tasks(engine: Engine) -> None:
    @engine.task
    async def double(number: int) -> int:
        return 2 * number

    async with engine.worker():
        handles = await double.enqueue_many([(number,) for number in range(300)])
        results = await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles))
    assert results == [2 * number for number in range(300)]


async def test_an_end_on_this_node_is_told_at_once_and_not_by_the_sweep(engine: Engine) -> None:
    @engine.task
    async def quick() -> None: ...

    async with engine.worker():
        for _ in range(10):
            await (await quick.enqueue()).result(PATIENCE_SECONDS)  # with a sweep of a minute


async def test_an_end_on_another_node_is_seen_by_the_sweep(new_engine: NewEngine, url: str) -> None:
    producer, worker = new_engine(url, sweep=0.05), new_engine(url, sweep=0.05)

    @worker.task
    async def add(first: int, second: int) -> int:
        return first + second

    async with producer, worker.worker():
        (handle,) = await producer.enqueue([producer.call("add", first=1, second=2)])
        assert await handle.result(PATIENCE_SECONDS) == 3


async def test_nobody_polls_while_nobody_waits(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=0.01)
    stores = make_troubled(engine)

    @engine.task
    async def note() -> None: ...

    async with engine:
        handle = await note.enqueue()
        with pytest.raises(ResultTimeout):
            await handle.result(0.03)
        await until(lambda: stores[-1].calls["get"] > 0)
        before = stores[-1].calls["get"]
        await asyncio.sleep(0.1)
        assert stores[-1].calls["get"] <= before + 1


async def test_an_error_of_the_store_does_not_leave_waiters_alone(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    stores = make_troubled(engine)

    @engine.task
    async def note() -> str:
        return "ran"

    async def fail_once(call: Callable[[], Awaitable[Any]]) -> Any:
        stores[-1].end("get")
        raise StoreError("something is wrong")

    async with engine.worker():
        handle = await note.enqueue()
        await until_state(handle, State.SUCCEEDED)
        stores[-1].cause("get", fail_once)
        assert await handle.result(PATIENCE_SECONDS) == "ran"


async def test_a_task_that_never_existed_is_not_waited_for(engine: Engine) -> None:
    async with engine:
        with pytest.raises(TaskDeleted, match="task 77 does not exist"):
            await engine.wait(77, timeout=PATIENCE_SECONDS)


async def test_a_waiting_time_that_makes_no_sense_is_refused(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    async with engine:
        handle = await note.enqueue()
        for timeout in (-1, float("nan"), "soon"):
            with pytest.raises(OptionError, match="timeout must be"):
                await handle.result(timeout)  # type: ignore[arg-type]  # wrong on purpose


async def test_a_waiter_is_told_in_time_however_many_others_begin_to_wait(
    new_engine: NewEngine, sqlite_url: str
) -> None:
    here = new_engine(sqlite_url, sweep=0.3, listen="off")
    elsewhere = new_engine(sqlite_url, sweep=0.05, listen="off")

    @elsewhere.task
    async def quick() -> int:
        return 1

    async with here, elsewhere, elsewhere.worker():
        (quick_one,) = await here.enqueue([here.call("quick")])
        handles = await here.enqueue([here.call("nobody_runs_this") for _ in range(20)])
        first = asyncio.create_task(quick_one.result(PATIENCE_SECONDS))
        others = []
        for handle in islice(cycle(handles), 600):  # somebody begins to wait more often than the sweep comes
            others.append(asyncio.create_task(handle.result()))
            await asyncio.wait([first], timeout=0.05)
            if first.done():
                break
        assert first.done()
        assert await first == 1
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def test_an_enqueue_that_is_cancelled_and_stored_all_the_same_is_not_left_to_the_sweep(
    new_engine: NewEngine, sqlite_url: str
) -> None:
    """The one who stored it was cancelled between the commit and the answer."""
    engine = new_engine(sqlite_url, sweep=3600)
    ran = asyncio.Event()

    @engine.task
    async def work() -> None:
        ran.set()

    async with engine.worker() as node:
        await until(lambda: not node.scheduler.is_claiming)
        storing = asyncio.create_task(work.enqueue())
        await asyncio.sleep(0)  # it is on its way, and nothing can call it back
        storing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await storing
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ran.wait()


async def test_an_enqueue_that_is_cancelled_during_its_statement_is_announced_after_it(
    new_engine: NewEngine, postgres_url: str
) -> None:
    """PostgreSQL's inserts belong to no caller: they go on."""
    engine = new_engine(postgres_url, sweep=3600)
    ran, gate = asyncio.Event(), Gate()

    @engine.task
    async def work() -> None:
        ran.set()

    async with engine.worker() as node:
        store = engine._store
        assert isinstance(store, PostgresStore)
        real = store._plain_inserts._insert

        async def insert_late(tasks: Sequence[NewTask]) -> list[Insertion]:
            await gate.hold()
            return await real(tasks)

        store._plain_inserts._insert = insert_late
        storing = asyncio.create_task(work.enqueue())
        await gate.until_reached()
        storing.cancel()
        for _ in range(10):  # turns in which the node would hear of it too early
            await asyncio.sleep(0)
        await until(lambda: not node.scheduler.is_claiming)
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await storing
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ran.wait()
