"""Whoever waits for what cannot come is told why, instead of waiting."""

from __future__ import annotations

import asyncio

import pytest
from tests.testing.app import asks, engine, flaky, greet

from synergon import Engine, ResultTimeout, Snooze, State, SynergonError, TaskFailed, testing
from synergon.testing import Tester


async def test_a_result_runs_what_is_due(tester: Tester) -> None:
    assert await (await greet.enqueue("Ada")).result() == "hello Ada"


async def test_a_result_that_needs_the_clock_says_so(tester: Tester) -> None:
    handle = await greet.with_options(delay=60).enqueue("Ada")
    with pytest.raises(ResultTimeout, match=r"task 1 \(greet\) .* due in 60 s by the test's clock"):
        await handle.result()


async def test_a_result_that_waits_for_a_retry_says_so(tester: Tester) -> None:
    handle = await flaky.enqueue(1)
    with pytest.raises(ResultTimeout, match="attempt 1 has failed, and it is due in 60 s"):
        await handle.result(timeout=3600)


async def test_a_result_that_nobody_here_can_make_says_so(tester: Tester) -> None:
    (handle,) = await engine.enqueue([engine.call("somebody.elses", number=1)])
    with pytest.raises(ResultTimeout, match="not registered"):
        await handle.result()


async def test_a_result_from_a_paused_queue_says_so(tester: Tester) -> None:
    await engine.pause("default")
    with pytest.raises(ResultTimeout, match="paused"):
        await (await greet.enqueue("Ada")).result()


async def test_a_body_may_wait_for_another(tester: Tester) -> None:
    handle = await asks.enqueue("Ada")
    await tester.drain()
    assert await handle.result() == "hello Ada, I am told"


async def test_bodies_that_wait_for_each_other_are_told() -> None:
    own = Engine("memory://")

    @own.task
    async def waits_for(task_id: int) -> None:
        await own.wait(task_id)

    async with testing.memory(own) as tester:
        await waits_for.enqueue(2)
        await waits_for.enqueue(1)
        await waits_for.enqueue(3)
        records = await tester.drain()
    assert [record.error and record.error.type for record in records] == ["ResultTimeout"] * 3


async def test_a_body_that_takes_the_only_place_is_told() -> None:
    own = Engine("memory://", concurrency=1)

    @own.task
    async def one() -> int:
        return 1

    @own.task
    async def needs_one() -> int:
        return await (await one.enqueue()).result()

    async with testing.memory(own) as tester:
        handle = await needs_one.enqueue()
        await tester.drain()
        with pytest.raises(TaskFailed, match="take all slots"):
            await handle.result()


async def test_a_task_that_is_due_for_ever_meets_the_limit() -> None:
    own = Engine("memory://")

    @own.task
    async def again() -> None:
        raise Snooze(0)

    async with testing.memory(own) as tester:
        handle = await again.enqueue()
        with pytest.raises(SynergonError, match=r"has run 50 attempts and more is due \(again\)"):
            await tester.drain(limit=50)
        assert (await handle.status()).state is State.READY


async def test_a_drain_can_be_broken_off() -> None:
    own = Engine("memory://")

    @own.task
    async def endless() -> None:
        await asyncio.Event().wait()

    async with testing.memory(own) as tester:
        handle = await endless.enqueue()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await tester.drain()
        record = await handle.status()
        assert (record.state, record.attempts) == (State.READY, 0)
