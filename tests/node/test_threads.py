"""A worker runs no more plain functions at once than it has threads, and coroutines do not wait for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, until

from synergon import Context, Engine, State, Why
from synergon.model.requirements import THREAD, UNIT
from synergon.task import AnyTask


class Turnstile:
    """Plain functions that wait until they are let go, and the greatest number of them at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leave = threading.Semaphore(0)
        self.inside = 0
        self.most = 0

    def function(self) -> None:
        """Wait until `let_go` was called once for each that came before."""
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self._leave.acquire(timeout=PATIENCE_SECONDS)
        with self._lock:
            self.inside -= 1

    def let_go(self, number: int) -> None:
        """Let so many functions end, now or later."""
        self._leave.release(number)


@pytest.fixture
def turnstile() -> Iterator[Turnstile]:
    made = Turnstile()
    yield made
    made.let_go(1000)


def kinds(engine: Engine, turnstile: Turnstile, number: int) -> list[AnyTask]:
    def named(name: str) -> Callable[[], None]:
        def function() -> None:
            turnstile.function()

        function.__name__ = name
        return function

    return [engine.task(named(f"kind_{index}")) for index in range(number)]


@pytest.mark.parametrize("number", [1, 2], ids=["one kind", "two kinds"])
async def test_no_more_functions_run_than_there_are_threads_and_coroutines_run_beside_them(
    new_engine: NewEngine, url: str, turnstile: Turnstile, number: int
) -> None:
    engine = new_engine(url, concurrency=20, threads=2, sweep=60)
    functions = kinds(engine, turnstile, number)

    @engine.task
    async def beside() -> str:
        return "done"

    async with engine, engine.worker(grace=0):
        handles = await engine.enqueue([functions[index % number].call() for index in range(7)])
        await until(lambda: turnstile.inside == 2)
        assert await (await beside.enqueue()).result(PATIENCE_SECONDS) == "done"
        states = [(await handle.status()).state for handle in handles]
        assert states == [State.RUNNING] * 2 + [State.READY] * 5, "no task waits claimed"
        turnstile.let_go(len(handles))
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
    assert turnstile.most == 2


async def test_a_task_that_waits_for_a_thread_says_so_and_another_worker_takes_it(
    new_engine: NewEngine, url: str, turnstile: Turnstile
) -> None:
    engine = new_engine(url, name="first", threads=1, sweep=0.2)
    (function,) = kinds(engine, turnstile, 1)
    other = new_engine(url, name="second", threads=1, sweep=0.2)
    kinds(other, turnstile, 1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine.worker(grace=0))
        first, second = await engine.enqueue([function.call(), function.call()])
        await until(lambda: turnstile.inside == 1)
        explanation = await second.explain()
        assert [cause.why for node in explanation.nodes for cause in node.causes] == [Why.THREADS]
        assert "first is full (1 of 1 threads in use)" in str(explanation)
        assert explanation.nodes[0].causes[0].tasks == (first.id,)
        await stack.enter_async_context(other.worker(grace=0))
        await until(lambda: turnstile.inside == 2)
        turnstile.let_go(2)
        for handle in (first, second):
            await handle.result(PATIENCE_SECONDS)


async def test_a_call_for_a_child_process_takes_no_thread(
    new_engine: NewEngine, url: str, turnstile: Turnstile
) -> None:
    engine = new_engine(url, threads=1)
    (function,) = kinds(engine, turnstile, 1)
    identity = on(engine, process_functions.process_id, runs_in="thread")
    async with engine, engine.worker(grace=0):
        await function.enqueue()
        await until(lambda: turnstile.inside == 1)
        waits = await identity.enqueue()
        child = await identity.with_options(runs_in="process").enqueue()
        assert await child.result(PATIENCE_SECONDS) != os.getpid()
        assert (await waits.status()).state is State.READY
        turnstile.let_go(1)
        assert await waits.result(PATIENCE_SECONDS) == os.getpid()


async def test_the_status_of_a_node_has_its_threads(
    new_engine: NewEngine, memory_url: str, turnstile: Turnstile
) -> None:
    engine = new_engine(memory_url, threads=3)
    (function,) = kinds(engine, turnstile, 1)
    async with engine, engine.worker(grace=0):
        await engine.enqueue([function.call(), function.call()])
        await until(lambda: turnstile.inside == 2)
        assert engine._node is not None
        state = engine._node.state()
        assert (state.totals[THREAD], state.free[THREAD]) == (3 * UNIT, UNIT)
        turnstile.let_go(2)


async def test_an_urgent_function_gets_the_thread_of_a_preemptible_one(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, threads=1, concurrency=10, sweep=60)
    has_begun, may_end = threading.Event(), threading.Event()

    @engine.task(preemptible=True)
    def long(ctx: Context) -> str:
        has_begun.set()
        while not (ctx.cancel_requested or may_end.is_set()):
            may_end.wait(0.01)
        return "done"

    @engine.task(urgent=True)
    def first() -> str:
        return "first"

    async with engine, engine.worker(grace=0):
        yields = await long.enqueue()
        await until(has_begun.is_set)
        assert await (await first.enqueue()).result(PATIENCE_SECONDS) == "first"
        may_end.set()
        assert await yields.result(PATIENCE_SECONDS) == "done"
        assert (await yields.status()).attempts == 1
