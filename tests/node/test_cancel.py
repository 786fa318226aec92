"""Cancel works in every state, sticks, and whoever waits is told."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, check_counts, ended, until, until_state

from synergon import Context, Engine, Handle, Reason, Retry, State, TaskCancelled, TaskNotFound


async def test_a_task_that_waits_is_cancelled_at_once(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    async with engine:
        for handle in (await note.enqueue(), await note.with_options(delay=60).enqueue()):
            waiter = asyncio.create_task(handle.result(PATIENCE_SECONDS))
            await asyncio.sleep(0)
            assert await handle.cancel() is True
            with pytest.raises(TaskCancelled, match=rf"task {handle.id} \(note\) was cancelled"):
                await waiter
            record = await handle.status()
            assert (record.state, record.reason) == (State.CANCELLED, Reason.CANCELLED)
            assert record.finished_at is not None


async def test_a_cancelled_task_never_runs(engine: Engine) -> None:
    ran: list[int] = []

    @engine.task
    async def note(number: int) -> None:
        ran.append(number)

    async with engine:
        handles = await note.enqueue_many([(number,) for number in range(10)])
        for handle in handles[::2]:
            await handle.cancel()
        async with engine.worker(drain=True):
            pass
    assert ran == [1, 3, 5, 7, 9]


async def test_a_task_that_waits_for_its_retry_can_be_cancelled(engine: Engine) -> None:
    ran = 0

    @engine.task(retry=Retry(attempts=1000, first=0.3, factor=1, jitter=0))
    async def fail() -> None:
        nonlocal ran
        ran += 1
        raise ValueError("again")

    async with engine.worker():
        handle = await fail.enqueue()
        await until_state(handle, State.SCHEDULED)
        assert await handle.cancel()
        record, ran_before = await ended(handle), ran
        await asyncio.sleep(0.4)  # past the moment at which the retry would have run
    assert (record.state, record.attempts, ran) == (State.CANCELLED, ran_before, ran_before)


async def test_a_running_coroutine_is_ended(engine: Engine) -> None:
    gate = Gate()

    @engine.task(retry=5)
    async def hold() -> None:
        await gate.hold()

    async with engine.worker():
        handle = await hold.enqueue()
        await gate.until_reached()
        assert await handle.cancel("changed my mind")
        with pytest.raises(TaskCancelled) as cancelled:
            await handle.result(PATIENCE_SECONDS)
    record = cancelled.value.record
    assert record.cancel_requested
    assert record.error is not None
    assert record.error.message == "changed my mind"


async def test_a_hundred_running_coroutines_end_cancelled_and_capacity_is_back(engine: Engine) -> None:
    @engine.task
    async def hold() -> None:
        await asyncio.sleep(600)

    @engine.task
    async def quick() -> None: ...

    async with engine.worker(concurrency=100) as node:
        handles = await hold.enqueue_many([()] * 100)
        await until(lambda: len(node.runner.running) == 100)
        await asyncio.gather(*(handle.cancel() for handle in handles))
        records = await asyncio.gather(*(ended(handle) for handle in handles))
        others = await quick.enqueue_many([()] * 100)
        await asyncio.gather(*(other.result(PATIENCE_SECONDS) for other in others))
        await check_counts(engine)
    assert Counter(record.state for record in records) == {State.CANCELLED: 100}


async def test_a_running_thread_is_told_and_ends_cancelled_whatever_it_does_then(engine: Engine) -> None:
    gate = ThreadGate()

    @engine.task(retry=5)
    def obedient(ctx: Context) -> str:
        gate.hold()
        while not ctx.cancel_requested:
            time.sleep(0.001)
        return "ended early"

    @engine.task(retry=5)
    def deaf() -> str:
        gate.hold()
        return "did it all the same"

    @engine.task(retry=5)
    def broken() -> None:
        gate.hold()
        raise ValueError("fails after the cancel")

    async with engine.worker():
        handles: list[Handle[Any]] = [await obedient.enqueue(), await deaf.enqueue(), await broken.enqueue()]
        for handle in handles:
            await until_state(handle, State.RUNNING)
            await handle.cancel()
        gate.open()
        for handle in handles:
            with pytest.raises(TaskCancelled):
                await handle.result(PATIENCE_SECONDS)
            assert (await handle.status()).result is None


async def test_a_running_process_is_killed(engine: Engine, tmp_path: Path) -> None:
    spin = on(engine, process_bodies.spin)
    started = tmp_path / "started"
    async with engine.worker():
        handle = await spin.enqueue(str(started))
        await until(started.exists)
        await until(lambda: started.read_text().endswith("\n"))
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(PATIENCE_SECONDS)
        assert not psutil.pid_exists(int(started.read_text()))
        assert (await handle.status()).crashes == 0


async def test_a_body_that_swallows_the_cancel_ends_cancelled_all_the_same(engine: Engine) -> None:
    gate = Gate()

    @engine.task(retry=5)
    async def swallows(ends: str) -> str:
        try:
            await gate.hold()
        except asyncio.CancelledError:
            if ends == "badly":
                raise ValueError("fails instead") from None
        return "as if nothing had happened"

    @engine.task
    async def quick() -> str:
        return "ran"

    async with engine.worker(concurrency=1):
        for ends in ("well", "badly"):
            gate.reached.clear()
            handle = await swallows.enqueue(ends)
            await gate.until_reached()
            await handle.cancel()
            assert (await ended(handle)).state is State.CANCELLED
        assert await (await quick.enqueue()).result(PATIENCE_SECONDS) == "ran"


async def test_a_cancel_of_a_body_leaves_the_next_one_alone(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def hold() -> None:
        try:
            await gate.hold()
        except asyncio.CancelledError:
            return

    @engine.task
    async def after() -> int:
        current = asyncio.current_task()
        assert current is not None
        await asyncio.sleep(0.01)
        return current.cancelling()

    async with engine.worker(concurrency=1):
        handle = await hold.enqueue()
        following = await after.enqueue()
        await gate.until_reached()
        await handle.cancel()
        assert await following.result(PATIENCE_SECONDS) == 0


async def test_cancel_against_success_ends_in_exactly_one_final_state(engine: Engine) -> None:
    """The body returns at about the moment of the cancel: whoever is first wins, and both are told the same."""
    finished: set[int] = set()

    @engine.task
    async def short(number: int) -> int:
        await asyncio.sleep(0.0005 * (number % 7))
        finished.add(number)
        return number

    async with engine.worker(concurrency=8):
        outcomes: Counter[State] = Counter()
        for number in range(150):
            handle = await short.enqueue(number)
            waiter = asyncio.create_task(ended(handle))
            await asyncio.sleep(0.0005 * (number % 5))
            was_cancelled = await handle.cancel()
            seen = await waiter
            stored = await handle.status()
            assert seen.state is stored.state
            assert stored.state is (State.CANCELLED if was_cancelled else State.SUCCEEDED)
            if stored.state is State.SUCCEEDED:
                assert number in finished
            outcomes[stored.state] += 1
        await check_counts(engine)
    assert sum(outcomes.values()) == 150


async def test_an_ended_task_cannot_be_cancelled_any_more(engine: Engine) -> None:
    @engine.task
    async def note() -> str:
        return "done"

    async with engine.worker():
        handle = await note.enqueue()
        await handle.result(PATIENCE_SECONDS)
        assert await handle.cancel() is False
        assert (await handle.status()).state is State.SUCCEEDED


async def test_a_task_that_does_not_exist_cannot_be_cancelled(engine: Engine) -> None:
    async with engine:
        with pytest.raises(TaskNotFound, match="there is no task 12345") as missing:
            await engine.cancel(12345)
    assert missing.value.task_id == 12345


async def test_a_node_hears_of_a_cancel_from_another_engine_by_its_sweep(new_engine: NewEngine, url: str) -> None:
    worker, operator = new_engine(url, sweep=0.05), new_engine(url, sweep=0.05)
    gate = Gate()

    @worker.task
    async def hold() -> None:
        await gate.hold()

    async with worker.worker(), operator:
        handle = await hold.enqueue()
        await gate.until_reached()
        assert await operator.cancel(handle.id)
        record = await operator.wait(handle.id, timeout=PATIENCE_SECONDS)
    assert record.state is State.CANCELLED


async def test_a_cancel_sticks_through_a_stop_of_the_node(engine: Engine) -> None:
    gate = ThreadGate()

    @engine.task
    def hold(ctx: Context) -> None:
        gate.hold()

    async with engine:
        async with engine.worker(grace=0):
            handle = await hold.enqueue()
            await gate.until_reached()
            stop = asyncio.create_task(engine._stop_node(0))
            await handle.cancel()
            gate.open()
            await stop
        assert (await handle.status()).state is State.CANCELLED
