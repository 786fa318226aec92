"""Bodies that run for too long."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, ended, until, until_state

from synergon import Context, Engine, Reason, Retry, State


async def test_a_coroutine_is_cancelled_at_its_deadline(engine: Engine) -> None:
    was_cancelled = False

    @engine.task(timeout=0.05)
    async def slow() -> None:
        nonlocal was_cancelled
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            was_cancelled = True
            raise

    async with engine.worker():
        record = await ended(await slow.enqueue())
    assert was_cancelled
    assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
    assert record.error is not None
    assert (record.error.type, record.error.message) == (
        "Timeout",
        "the function ran longer than its timeout of 0.05 s",
    )


async def test_a_timeout_is_a_failed_attempt_and_is_retried(engine: Engine) -> None:
    @engine.task(timeout="50ms", retry=Retry(attempts=2, first=0))
    async def slow_at_first(ctx: Context) -> str:
        if ctx.attempt == 1:
            await asyncio.sleep(60)
        return "in time"

    async with engine.worker():
        handle = await slow_at_first.enqueue()
        assert await handle.result(PATIENCE_SECONDS) == "in time"
        assert [error.type for error in (await handle.status()).errors] == ["Timeout"]


async def test_the_slot_of_a_body_that_timed_out_is_free_again(engine: Engine) -> None:
    @engine.task(timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(60)

    @engine.task
    async def quick() -> str:
        return "ran"

    async with engine.worker(concurrency=1):
        await slow.enqueue_many([()] * 3)
        assert await (await quick.enqueue()).result(PATIENCE_SECONDS) == "ran"


async def test_a_thread_that_ignores_its_timeout_never_overlaps_with_itself(engine: Engine) -> None:
    executions: list[tuple[float, float]] = []

    @engine.task(timeout="50ms", retry=Retry(attempts=5, first=0))
    def ignores_it() -> None:
        began = time.monotonic()
        time.sleep(0.3)
        executions.append((began, time.monotonic()))

    async with engine.worker(concurrency=1):
        record = await ended(await ignores_it.enqueue())
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.TIMEOUT, 5)
    assert len(executions) == 5
    for (_, end), (begin, _) in pairwise(executions):
        assert end <= begin


async def test_a_thread_that_ignores_its_timeout_stays_running_and_is_marked_overdue(engine: Engine) -> None:
    gate = ThreadGate()

    @engine.task(timeout="50ms")
    def ignores_it() -> None:
        gate.hold()

    @engine.task
    async def other() -> None: ...

    async with engine.worker(concurrency=1):
        handle = await ignores_it.enqueue()
        await gate.until_reached()

        async def is_overdue() -> bool:
            return (await handle.status()).overdue

        await until(is_overdue)
        assert (await handle.status()).state is State.RUNNING
        waiting = await other.enqueue()
        assert (await waiting.status()).state is State.READY
        gate.open()
        assert (await ended(handle)).reason is Reason.TIMEOUT
        await waiting.result(PATIENCE_SECONDS)


async def test_a_thread_can_see_that_its_time_is_over(engine: Engine) -> None:
    @engine.task(timeout="50ms")
    def looks(ctx: Context) -> None:
        while not ctx.cancel_requested:
            time.sleep(0.001)

    async with engine.worker():
        record = await ended(await looks.enqueue())
    assert record.reason is Reason.TIMEOUT


async def test_a_coroutine_that_swallows_its_timeout_keeps_its_slot_until_it_ends(engine: Engine) -> None:
    gate = Gate()
    overlapping = threading.Lock()

    @engine.task(timeout="50ms")
    async def swallows() -> str:
        with overlapping:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await gate.hold()
        return "too late"

    @engine.task
    async def other() -> bool:
        return overlapping.locked()

    async with engine.worker(concurrency=1):
        handle = await swallows.enqueue()
        await gate.until_reached()
        waiting = await other.enqueue()
        assert (await handle.status()).state is State.RUNNING
        gate.open()
        assert (await ended(handle)).reason is Reason.TIMEOUT
        assert await waiting.result(PATIENCE_SECONDS) is False


async def test_a_process_is_killed_at_its_deadline(new_engine: NewEngine, memory_url: str, tmp_path: Path) -> None:
    engine = new_engine(memory_url)
    spin = on(engine, process_bodies.spin, timeout=0.5)
    started = tmp_path / "started"
    async with engine.worker(), asyncio.timeout(PATIENCE_SECONDS):
        while not (started.exists() and started.read_text()):  # it may be killed before it has said that it runs
            record = await ended(await spin.enqueue(str(started)))
            assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
    assert not psutil.pid_exists(int(started.read_text()))


async def test_a_call_may_have_a_timeout_of_its_own(engine: Engine) -> None:
    @engine.task
    async def slow() -> None:
        await asyncio.sleep(60)

    async with engine.worker():
        record = await ended(await slow.with_options(timeout=timedelta(milliseconds=30)).enqueue())
    assert record.reason is Reason.TIMEOUT


async def test_what_says_nothing_has_the_timeout_of_the_engine(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, timeout=0.05)

    @engine.task
    async def slow() -> None:
        await asyncio.sleep(60)

    async with engine.worker():
        assert (await ended(await slow.enqueue())).reason is Reason.TIMEOUT


@pytest.mark.parametrize("where", ["on the kind", "on the call"])
async def test_no_timeout_is_one_that_was_written_so(new_engine: NewEngine, url: str, where: str) -> None:
    engine = new_engine(url, timeout=0.03)

    async def slow() -> str:
        await asyncio.sleep(0.15)
        return "had the time"

    task = engine.task(timeout=None)(slow) if where == "on the kind" else engine.task(slow)
    async with engine.worker():
        call = task.with_options(timeout=None) if where == "on the call" else task
        assert await (await call.enqueue()).result(PATIENCE_SECONDS) == "had the time"


async def test_an_attempt_that_is_stopped_before_it_begins_never_begins(engine: Engine) -> None:
    gate = Gate()
    ran: list[int] = []

    @engine.task
    async def hold(number: int) -> None:
        ran.append(number)
        await gate.hold()

    async with engine.worker(concurrency=1):
        first, second = await hold.enqueue_many([(1,), (2,)])
        await gate.until_reached()
        await second.cancel()
        gate.open()
        await ended(first)
        assert (await ended(second)).state is State.CANCELLED
    assert ran == [1]


async def test_a_body_that_ends_in_time_is_not_touched_by_its_deadline(engine: Engine) -> None:
    @engine.task(timeout=0.1, retry=Retry(attempts=1000, first=0))  # a machine that stands still comes too late for it
    async def quick() -> None: ...

    @engine.task
    async def long() -> str:
        await asyncio.sleep(0.3)  # past the deadlines of those that ran in the same slots before
        return "undisturbed"

    async with engine.worker(concurrency=4):
        await asyncio.gather(*[handle.result(PATIENCE_SECONDS) for handle in await quick.enqueue_many([()] * 8)])
        handles = await long.enqueue_many([()] * 4)
        await until_state(handles[-1], State.RUNNING, State.SUCCEEDED)
        results = await asyncio.gather(*[handle.result(PATIENCE_SECONDS) for handle in handles])
    assert results == ["undisturbed"] * 4
