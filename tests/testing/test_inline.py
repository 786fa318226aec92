"""Inline: what is enqueued has run when the enqueue returns."""

from __future__ import annotations

import pytest
from tests.testing.app import asks, broken, engine, greet, in_a_process, parent, ran

from synergon import Engine, State, TaskFailed, testing
from synergon.testing import Tester


async def test_the_result_is_there_when_enqueue_returns(inline: Tester) -> None:
    handle = await greet.enqueue("Ada")
    assert ran == ["Ada"]
    assert (await handle.status()).state is State.SUCCEEDED
    assert await handle.result(timeout=0) == "hello Ada"


async def test_children_have_run_too(inline: Tester) -> None:
    await parent.enqueue(2)
    assert ran == ["parent", "child 0", "child 1"]


async def test_an_enqueue_inside_a_body_runs_at_once(inline: Tester) -> None:
    assert await (await asks.enqueue("Ada")).result() == "hello Ada, I am told"


async def test_a_thread_may_enqueue_and_wait_for_the_result() -> None:
    own = Engine("memory://")

    @own.task
    async def double(number: int) -> int:
        return number * 2

    @own.task
    def sums() -> int:
        return sum(double.enqueue_sync(number).result_sync() for number in range(4))

    async with testing.inline(own):
        assert await (await sums.enqueue()).result() == 12


async def test_a_list_runs_before_enqueue_returns(inline: Tester) -> None:
    await engine.enqueue([greet.call("Ada"), in_a_process.call("Bob")])
    assert sorted(ran) == ["Ada", "Bob"]


async def test_errors_wait_for_whoever_asks(inline: Tester) -> None:
    handle = await broken.enqueue()
    with pytest.raises(TaskFailed, match="ZeroDivisionError: by nobody"):
        await handle.result()


async def test_delayed_ones_wait_for_the_clock(inline: Tester) -> None:
    handle = await greet.with_options(delay=60).enqueue("Ada")
    assert ran == []
    inline.clock.advance(60)
    await inline.drain()
    assert await handle.result() == "hello Ada"


async def test_a_delayed_one_runs_with_the_next_enqueue_once_it_is_due(inline: Tester) -> None:
    await greet.with_options(delay=60).enqueue("Ada")
    inline.clock.advance(60)
    await greet.enqueue("Bob")
    assert ran == ["Ada", "Bob"]


async def test_no_room_leaves_it_for_later() -> None:
    own = Engine("memory://")
    order: list[str] = []

    @own.task(max_running=1)
    async def alone(depth: int) -> None:
        order.append(f"begin {depth}")
        if depth:
            await alone.enqueue(depth - 1)
        order.append(f"end {depth}")

    async with testing.inline(own):
        await alone.enqueue(2)
    assert order == ["begin 2", "end 2", "begin 1", "end 1", "begin 0", "end 0"]
