"""Idle work: functions that are called when there is room and nothing to run, and that disturb nobody."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, make_troubled, until

from synergon import Engine, NotConnected, OptionError, State
from synergon.client.cooperative import CHUNK
from synergon.errors import StoreUnavailable

SOON = 0.01
NEVER_AGAIN = 3600


async def test_an_idle_node_calls_its_hook_again_and_again_and_runs_what_it_enqueues(engine: Engine) -> None:
    ran: list[int] = []

    @engine.task
    async def work(number: int) -> None:
        ran.append(number)

    @engine.when_idle(every=SOON)
    async def make_work() -> None:
        await work.enqueue(len(ran))

    async with engine.worker():
        await until(lambda: len(ran) >= 5)
    assert ran[:5] == [0, 1, 2, 3, 4]
    assert inspect.iscoroutinefunction(make_work), "the function stays what it is"


async def test_a_hook_without_options_is_called_every_five_seconds_and_may_be_a_plain_function(engine: Engine) -> None:
    called = threading.Event()

    @engine.task
    async def work() -> None: ...

    @engine.when_idle
    def make_work() -> None:
        called.set()
        work.enqueue_sync()

    (hook,) = engine.idle_hooks
    assert (hook.every, hook.timeout, hook.kind) == (5.0, 1800.0, None)
    async with engine.worker():
        await until(called.is_set)
        await until(lambda: _succeeded(engine, 1))


async def _succeeded(engine: Engine, number: int) -> bool:
    return (await engine.counts())[State.SUCCEEDED] == number


async def test_no_hook_is_called_while_all_slots_are_taken(engine: Engine) -> None:
    gate, called = Gate(), asyncio.Event()

    @engine.task
    async def hold() -> None:
        await gate.hold()

    @engine.when_idle(every=SOON)
    async def make_work() -> None:
        called.set()

    async with engine:
        await hold.enqueue_many([()] * 2)
        async with engine.worker(concurrency=2) as node:
            await gate.until_reached()
            await until(lambda: len(node.runner.running) == 2)
            await asyncio.sleep(10 * SOON)
            assert not called.is_set(), "nothing is ready, but all slots are taken"
            gate.open()
            await asyncio.wait_for(called.wait(), PATIENCE_SECONDS)


async def test_no_hook_is_called_while_there_is_something_that_could_run(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine, tries, called = new_engine(memory_url), asyncio.Event(), asyncio.Event()
    stores = make_troubled(engine)

    async def fail(call: Callable[[], Awaitable[Any]]) -> Any:
        tries.set()
        raise StoreUnavailable("away")

    @engine.task
    async def work() -> None: ...

    @engine.when_idle(every=SOON)
    async def make_work() -> None:
        called.set()

    async with engine:
        stores[-1].cause("claim", fail)
        async with engine.worker(concurrency=2):
            await asyncio.wait_for(tries.wait(), PATIENCE_SECONDS)
            await asyncio.sleep(5 * SOON)
            assert not called.is_set(), "all slots are free, but something may be ready that could not be claimed"
            stores[-1].end("claim")
            await asyncio.wait_for(called.wait(), PATIENCE_SECONDS)


@pytest.mark.parametrize("ready", [0, 1])
async def test_a_hook_is_called_while_a_kind_is_full_and_slots_are_free(engine: Engine, ready: int) -> None:
    gate, called = Gate(), list[int]()

    @engine.task(max_running=1)
    async def hold() -> None:
        await gate.hold()

    @engine.when_idle(every=SOON)
    async def make_work() -> None:
        called.append(1)

    async with engine:
        await hold.enqueue_many([()] * (1 + ready))
        async with engine.worker(concurrency=5):
            await gate.until_reached()
            before = len(called)
            await until(lambda: len(called) >= before + 3)
            gate.open()


async def test_the_hook_of_a_kind_is_called_when_there_is_room_for_that_kind_whatever_else_runs(engine: Engine) -> None:
    gate = Gate()
    called: Counter[str] = Counter()

    @engine.task(max_running=1)
    async def busy() -> None:
        await gate.hold()

    @engine.task
    async def free() -> None: ...

    @busy.when_idle(every=SOON)
    async def more_busy_work() -> None:
        called["busy"] += 1

    @free.when_idle
    async def more_free_work() -> None:
        called["free"] += 1

    async with engine:
        await busy.enqueue_many([(), ()])
        async with engine.worker(concurrency=5):
            await gate.until_reached()
            await until(lambda: called["free"] > 0)
            assert called["busy"] == 0
            gate.open()
            await until(lambda: called["busy"] > 0)


async def test_there_are_never_two_hooks_at_once(engine: Engine) -> None:
    inside, most, ended = Counter[str](), [0], Counter[str]()

    def enter(name: str) -> None:
        inside[name] += 1
        most[0] = max(most[0], inside.total())

    def leave(name: str) -> None:
        inside[name] -= 1
        ended[name] += 1

    @engine.task
    async def work() -> None: ...

    @engine.when_idle(every=0.001)
    async def coroutine() -> None:
        enter("coroutine")
        await asyncio.sleep(0.005)
        leave("coroutine")

    @work.when_idle(every=0.001)
    def thread() -> None:
        enter("thread")
        time.sleep(0.005)
        leave("thread")

    async with engine.worker():
        await until(lambda: min(ended["coroutine"], ended["thread"]) >= 5)
    assert most == [1]


async def test_what_a_hook_raises_is_logged_with_its_traceback_and_changes_nothing(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    calls: Counter[str] = Counter()

    @engine.task
    async def work() -> str:
        return "done"

    @engine.when_idle(every=SOON)
    async def broken() -> None:
        calls["broken"] += 1
        raise ZeroDivisionError("so it goes")

    @engine.when_idle(every=SOON)
    def wants_out() -> None:
        calls["out"] += 1
        raise SystemExit(3)

    @engine.when_idle(every=SOON)
    async def wants_out_too() -> None:
        calls["out too"] += 1
        raise SystemExit(4)

    async with engine.worker():
        await until(lambda: len(calls) == 3 and min(calls.values()) >= 2)
        assert await (await work.enqueue()).result(timeout=PATIENCE_SECONDS) == "done"
    said = [record for record in caplog.records if "raised; the next call is in 0.01 s" in record.getMessage()]
    assert "broken" in said[0].getMessage()
    assert said[0].exc_info is not None
    assert isinstance(said[0].exc_info[1], ZeroDivisionError)


async def test_a_hook_that_loops_until_nothing_is_left_ends_when_the_engine_stops(engine: Engine) -> None:
    ended: list[str] = []

    @engine.task
    async def work() -> None: ...

    @engine.when_idle(every=NEVER_AGAIN)
    async def endless() -> None:
        try:
            while True:
                await work.enqueue()
        finally:
            ended.append("coroutine")

    async with engine.worker():
        await until(lambda: _some_succeeded(engine))
    assert ended == ["coroutine"]


async def _some_succeeded(engine: Engine) -> bool:
    return (await engine.counts())[State.SUCCEEDED] >= 3


async def test_a_thread_that_loops_until_nothing_is_left_cannot_enqueue_when_the_engine_stops(engine: Engine) -> None:
    ended: list[str] = []

    @engine.task
    async def work() -> None: ...

    @engine.when_idle(every=NEVER_AGAIN)
    def endless() -> None:
        try:
            while True:
                work.enqueue_sync()
        except NotConnected as error:
            ended.append(str(error))

    async with engine:
        async with engine.worker():
            await until(lambda: _some_succeeded(engine))
        await until(lambda: bool(ended))
        stored = sum((await engine.counts()).values())
        assert "endless cannot use the engine any more: its node stops" in ended[0]
        await asyncio.sleep(10 * SOON)
        assert sum((await engine.counts()).values()) == stored


async def test_a_hook_that_never_returns_holds_up_neither_tasks_nor_the_stop(
    new_engine: NewEngine, memory_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("callbacks", "idle_hooks"):
        monkeypatch.setattr(f"synergon.node.callbacks.{module}.STOP_SECONDS", 0.05)
    engine, gate = new_engine(memory_url), ThreadGate()

    @engine.task
    async def work() -> str:
        return "done"

    @engine.when_idle(timeout=None)
    def never() -> None:
        gate.hold()

    async with engine.worker():
        await gate.until_reached()
        assert await (await work.enqueue()).result(timeout=PATIENCE_SECONDS) == "done"
    assert "never did not end within 0.05 s; the node stops without it" in caplog.text
    gate.open()


async def test_a_hook_that_takes_too_long_is_ended_and_called_again(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled: list[int] = []

    @engine.task
    async def work() -> None: ...

    @engine.when_idle(every=SOON, timeout=0.02)
    async def slow() -> None:
        try:
            await asyncio.sleep(NEVER_AGAIN)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async with engine.worker():
        await until(lambda: len(cancelled) >= 2)
    assert "slow did not end within 0.02 s; stopping it" in caplog.text
    assert not [record for record in caplog.records if record.exc_info], "that is no error of its own"


async def test_no_hook_is_called_while_the_node_is_cordoned(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    called: list[int] = []

    @engine.task
    async def work() -> None: ...

    @engine.when_idle(every=SOON)
    async def make_work() -> None:
        called.append(1)

    async with engine.worker() as node:
        await until(lambda: len(called) >= 2)
        await engine.cordon(node.id)
        await until(lambda: node.cordon.is_cordoned)
        before = len(called)
        await asyncio.sleep(20 * SOON)
        assert len(called) <= before + 1, "one may have been under way"
        await engine.uncordon(node.id)
        await until(lambda: len(called) > before + 1)


async def test_a_worker_that_drains_makes_no_work_for_itself(engine: Engine) -> None:
    @engine.task
    async def work() -> None: ...

    @engine.when_idle(every=0.001)
    async def make_work() -> None:
        await work.enqueue()

    async with asyncio.timeout(PATIENCE_SECONDS):
        async with engine.worker(drain=True):
            await until(lambda: _some_succeeded(engine))


async def test_a_hook_that_comes_after_the_worker_is_refused(engine: Engine) -> None:
    @engine.task
    async def work() -> None: ...

    async with engine.worker():
        with pytest.raises(OptionError, match="must be there before a worker starts"):

            @work.when_idle
            async def late() -> None: ...


@dataclass
class Noticed:
    """An argument that tells how often it was made: once more when it is bound."""

    index: int
    made: ClassVar[int] = 0

    def __post_init__(self) -> None:
        Noticed.made += 1


async def test_a_hook_that_enqueues_very_many_side_by_side_lets_others_have_their_turn(engine: Engine) -> None:
    """Counted, not timed: how much is done for them between two turns of somebody else."""
    number, over, between = 5 * CHUNK, asyncio.Event(), [0]

    @engine.task(queue="later")
    async def work(noticed: Noticed) -> None: ...

    noticed = [Noticed(index) for index in range(number)]

    @engine.when_idle(every=NEVER_AGAIN)
    async def side_by_side() -> None:
        await asyncio.gather(*map(work.enqueue, noticed))
        over.set()

    async with engine.worker(queues=["elsewhere"]):
        while not over.is_set():
            before = Noticed.made
            await asyncio.sleep(0)
            between.append(Noticed.made - before)
        assert (await engine.counts())[State.READY] == number
    assert 0 < max(between) <= CHUNK


@pytest.mark.parametrize("way", ["all at once", "side by side", "from a thread"])
async def test_ten_thousand_tasks_of_one_hook_are_all_stored_and_hold_nobody_up(
    engine: Engine, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    number, over, lags = 10_000, asyncio.Event(), [0.0]
    loop = asyncio.get_running_loop()

    @engine.task(queue="later")
    async def work(index: int) -> None: ...

    if way == "all at once":

        @engine.when_idle(every=NEVER_AGAIN)
        async def coroutine() -> None:
            await work.enqueue_many((index,) for index in range(number))
            over.set()
    elif way == "side by side":

        @engine.when_idle(every=NEVER_AGAIN)
        async def coroutines() -> None:
            await asyncio.gather(*(work.enqueue(index) for index in range(number)))
            over.set()
    else:

        @engine.when_idle(every=NEVER_AGAIN)
        def thread() -> None:
            work.enqueue_many_sync((index,) for index in range(number))
            loop.call_soon_threadsafe(over.set)

    async def tick() -> None:
        # By what this thread itself has used up: how long others kept it waiting says nothing about the engine.
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            lags.append(time.thread_time() - before)

    gc.collect()
    gc.freeze()  # what the tests before have left behind is not gone through in here
    async with engine.worker(queues=["elsewhere"]):
        ticking = asyncio.create_task(tick())
        await asyncio.wait_for(over.wait(), PATIENCE_SECONDS)
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
        assert (await engine.counts())[State.READY] == number
    print(f"the loop was late by {1000 * max(lags):.0f} ms at the most")
    gc.unfreeze()
    before = time.thread_time()
    sum(range(20_000_000))
    assert max(lags) < time.thread_time() - before, "it should be a third of that"
