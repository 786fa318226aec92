"""Stopping in order: what runs may finish, what cannot is given back, and nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.every_store import every_url  # noqa: F401
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, Renewals, ThreadGate, all_tasks, ended, until, until_state

from synergon import Context, Engine, Handle, NotConnected, OptionError, State
from synergon.model.clock import SystemClock
from synergon.node.duties.backlog import LONGEST_PAUSE_SECONDS, Backlog


async def test_with_enough_grace_running_work_finishes(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def work() -> str:
        gate.reached.set()
        await asyncio.sleep(0.1)
        return "finished"

    async with engine:
        async with engine.worker(grace=PATIENCE_SECONDS):
            handle = await work.enqueue()
            await gate.until_reached()
        record = await handle.status()
    assert (record.state, record.result) == (State.SUCCEEDED, "finished")


async def test_with_too_little_grace_work_is_given_back_and_not_charged(engine: Engine) -> None:
    gate, thread_gate = Gate(), ThreadGate()

    @engine.task
    async def on_loop() -> None:
        await gate.hold()

    @engine.task
    def in_thread(ctx: Context) -> str:
        thread_gate.hold()
        while not ctx.cancel_requested:
            time.sleep(0.001)
        return "half done"

    async with engine:
        async with engine.worker(grace=0):
            handles: list[Handle[Any]] = [await on_loop.enqueue(), await in_thread.enqueue()]
            await gate.until_reached()
            await thread_gate.until_reached()
            thread_gate.open()
        for handle in handles:
            record = await handle.status()
            assert (record.state, record.attempts, record.crashes) == (State.READY, 0, 0)
            assert (record.node_id, record.errors) == (None, ())


async def test_the_status_says_that_the_node_stops(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def work() -> None:
        await gate.hold()

    async def is_published() -> bool:
        return [node.state.is_stopping for node in await engine.nodes()] == [True]

    async with engine, engine.worker() as node:
        await work.enqueue()
        await gate.until_reached()
        assert not await is_published()
        stopping = asyncio.ensure_future(node.stop(PATIENCE_SECONDS))
        await until(is_published)
        assert not stopping.done()
        gate.open()
        await stopping


async def test_a_stop_goes_on_while_the_lease_cannot_be_renewed(engine: Engine) -> None:
    gate = Gate()
    way = Renewals(engine)

    @engine.task
    async def work() -> None:
        await gate.hold()

    async with engine:
        async with engine.worker(grace=0):
            handle = await work.enqueue()
            await gate.until_reached()
            way.is_cut = True
        record = await handle.status()
    assert (record.state, record.attempts, record.crashes) == (State.READY, 0, 0)


async def test_a_process_body_is_killed_and_given_back_without_a_crash(
    new_engine: NewEngine, sqlite_url: str, tmp_path: Path
) -> None:
    engine = new_engine(sqlite_url)
    sleep_long = on(engine, process_bodies.sleep_long)
    started = tmp_path / "started"
    async with engine:
        async with engine.worker(grace=0):
            handle = await sleep_long.enqueue(str(started))
            await until(lambda: started.exists() and started.read_text().endswith("\n"))
        record = await handle.status()
    assert (record.state, record.attempts, record.crashes) == (State.READY, 0, 0)
    assert not psutil.pid_exists(int(started.read_text()))


async def test_a_thread_that_was_not_told_in_time_and_finished_has_finished(engine: Engine) -> None:
    gate = ThreadGate()

    @engine.task
    def work() -> str:
        gate.hold()
        return "finished after all"

    async with engine:
        async with engine.worker(grace=0):
            handle = await work.enqueue()
            await gate.until_reached()
            asyncio.get_running_loop().call_later(0.1, gate.open)
        assert (await handle.status()).result == "finished after all"


async def test_what_was_given_back_runs_on_the_next_node(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    gate = Gate()

    @engine.task
    async def work(ctx: Context) -> int:
        if ctx.claim_no == 1:
            await gate.hold()
        return ctx.attempt

    async with engine:
        async with engine.worker(grace=0):
            handle = await work.enqueue()
            await gate.until_reached()
        async with engine.worker():
            assert await handle.result(PATIENCE_SECONDS) == 1


async def test_two_stops_at_once_both_return(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def work() -> None:
        await gate.hold()

    await engine.connect()
    worker = engine.worker()
    await worker.__aenter__()
    await work.enqueue()
    await gate.until_reached()
    stops = [asyncio.create_task(engine.stop(grace=PATIENCE_SECONDS)) for _ in range(3)]
    done, _ = await asyncio.wait(stops, timeout=0.05)
    assert not done, "all of them wait for the work that runs"
    gate.open()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*stops)
    await engine.stop()
    with pytest.raises(NotConnected, match="not connected"):
        await work.enqueue()


async def test_a_stop_that_nobody_waits_for_any_longer_goes_on(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def work() -> None:
        await gate.hold()

    async with engine:
        async with engine.worker() as node:
            await work.enqueue()
            await gate.until_reached()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await engine._stop_node(PATIENCE_SECONDS)
            gate.open()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await node.stopped()
        assert await engine.nodes() == []


async def test_no_grace_is_as_long_as_it_takes(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def work() -> str:
        await gate.hold()
        return "took its time"

    async with engine:
        async with engine.worker(grace=None):
            handle = await work.enqueue()
            await gate.until_reached()
            asyncio.get_running_loop().call_later(0.15, gate.open)
        assert (await handle.status()).result == "took its time"


async def test_a_stopped_node_leaves_no_row(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    async with engine:
        async with engine.worker(name="the-node") as node:
            (record,) = await engine.nodes()
            assert (record.id, record.name, record.kinds) == (node.id, "the-node", ("note",))
            assert record.lease_remaining > 0
        assert await engine.nodes() == []


async def test_every_start_has_an_id_of_its_own(engine: Engine) -> None:
    async with engine:
        async with engine.worker() as first:
            pass
        async with engine.worker() as second:
            pass
    assert first.id != second.id


async def test_a_node_that_is_stopped_at_once_and_one_that_runs_nothing_both_stop(engine: Engine) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with engine.worker():
            pass

        @engine.task
        async def note() -> None: ...

        async with engine.worker():
            pass


async def test_an_engine_has_one_node_at_a_time(engine: Engine) -> None:
    async with engine.worker():
        with pytest.raises(OptionError, match="already runs a node; make another Engine"):
            async with engine.worker():
                pass


async def test_an_engine_can_be_used_again_after_it_was_stopped(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url)

    @engine.task
    async def note() -> str:
        return "ran"

    for _ in range(3):
        async with engine, engine.worker():
            assert await (await note.enqueue()).result(PATIENCE_SECONDS) == "ran"


async def test_whoever_waits_when_the_engine_is_closed_is_told(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    await engine.connect()
    handle = await note.enqueue()
    waiter = asyncio.create_task(handle.result())
    await until(lambda: handle.id in engine._waiters._futures)
    await engine.close()
    with pytest.raises(NotConnected, match="closed while a caller waited"):
        await waiter


async def test_draining_ends_when_nothing_is_left_that_this_node_could_run(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, queues=["mine", "paused"])
    ran: list[str] = []

    @engine.task(queue="mine")
    async def note(name: str) -> None:
        ran.append(name)

    async with engine:
        await engine.pause("paused")
        await note.enqueue("now")
        await note.with_options(delay=0.1).enqueue("later")
        await note.with_options(queue="theirs").enqueue("not ours")
        await note.with_options(queue="paused").enqueue("not now")
        await engine.enqueue([engine.call("unknown").with_options(queue="mine")])
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with engine.worker(drain=True):
                pass
        assert len(await engine.tasks(state="ready")) == 3
    assert ran == ["now", "later"]


async def test_a_drain_ends_when_somebody_stops_the_engine(engine: Engine) -> None:
    @engine.task
    async def never() -> None: ...

    async with asyncio.timeout(PATIENCE_SECONDS):
        async with engine.worker(drain=True):
            await never.with_options(delay=3600).enqueue()
            asyncio.get_running_loop().call_later(0.1, lambda: asyncio.ensure_future(engine.stop(0)))


async def test_a_drain_that_looks_at_a_closed_store_ends_without_an_error(engine: Engine) -> None:
    @engine.task
    async def never() -> None: ...

    async with engine.worker() as node:
        backlog = Backlog(node.store, node._kinds, None, node._admission, node.acceptance)
    assert not await backlog.is_empty()


class SlowMachine(SystemClock):
    """A minute passes from each look at the clock to the next."""

    def __init__(self) -> None:
        self._minutes = 0
        self.pauses: list[float] = []
        self.on_pause: Callable[[], Awaitable[object]]

    def monotonic(self) -> float:
        self._minutes += 1
        return 60.0 * self._minutes

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.on_pause()


async def test_a_drain_on_a_slow_machine_ends_soon_after_the_last_task(engine: Engine) -> None:
    @engine.task
    async def later() -> None: ...

    clock = SlowMachine()
    async with engine.worker() as node:
        handle = await later.with_options(delay=3600).enqueue()

        async def cancel() -> None:
            await handle.cancel()
            await until(lambda: not node.scheduler.is_claiming)  # the first claim of the node may be in flight

        clock.on_pause = cancel
        backlog = Backlog(node.store, node._kinds, None, node._admission, node.acceptance)
        await backlog.ends(clock, node.runner, node.scheduler, asyncio.Event())
    assert clock.pauses == [LONGEST_PAUSE_SECONDS]


async def test_a_body_may_stop_its_own_engine_and_is_given_back(new_engine: NewEngine, url: str) -> None:
    keeper, engine = new_engine(url), new_engine(url)

    @engine.task
    async def enough() -> None:
        await engine.stop(grace=0)

    async with keeper:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with engine.worker() as node:
                handle = await enough.enqueue()
                await node.stopped()
        record = await keeper.get(handle.id)
        assert (record.state, record.attempts) == (State.READY, 0)


async def test_a_body_cannot_wait_for_its_own_end(engine: Engine) -> None:
    @engine.task
    async def enough() -> None:
        await engine.stop(grace=None)

    async with engine.worker():
        record = await ended(await enough.enqueue())
    assert record.error is not None
    assert record.error.message.startswith("a task function cannot stop its own engine with grace=None")


# ---------------------------------------------------------------- producers


ROUNDS = {"memory": 75, "sqlite": 25, "postgresql": 10}


async def test_what_producers_were_told_is_stored_is_finished_or_still_there(
    new_engine: NewEngine, url: str, request: pytest.FixtureRequest
) -> None:
    """Producers enqueue while the engine stops, at every moment of the stop."""
    keeper = new_engine(url)
    async with keeper:
        for round_no in range(ROUNDS[url.partition(":")[0]]):
            await _stop_under_load(new_engine(url), keeper, yields=round_no % 25)


async def _stop_under_load(engine: Engine, keeper: Engine, *, yields: int) -> None:
    finished: set[int] = set()
    accepted: set[int] = set()

    @engine.task
    async def work(ctx: Context) -> None:
        await asyncio.sleep(0)
        finished.add(ctx.task_id)

    async def produce() -> None:
        with contextlib.suppress(NotConnected):
            while True:
                accepted.add((await work.enqueue()).id)
                await asyncio.sleep(0)

    async with engine, engine.worker(concurrency=3, grace=0):
        producers = [asyncio.create_task(produce()) for _ in range(3)]
        for _ in range(yields):
            await asyncio.sleep(0)
        # The engine itself is still connected, so producers may go on until it is closed.
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*producers)
    tasks = await all_tasks(keeper)
    by_state = {state: {task.id for task in tasks if task.state is state} for state in State}
    assert by_state[State.SUCCEEDED] | by_state[State.READY] == {task.id for task in tasks}
    assert accepted <= {task.id for task in tasks}
    assert by_state[State.SUCCEEDED] == finished, "what has finished is not run again"
    assert all(task.attempts == 0 for task in tasks if task.state is State.READY)
    for task in tasks:
        await keeper.delete(task.id)


async def test_a_producer_whose_node_stops_can_go_on_producing(engine: Engine) -> None:
    @engine.task
    async def note() -> str:
        return "ran"

    async with engine:
        async with engine.worker():
            pass
        handle = await note.enqueue()
        assert (await handle.status()).state is State.READY
        async with engine.worker():
            await until_state(handle, State.SUCCEEDED)
            assert (await ended(handle)).result == "ran"
