"""A user's engine on a store of the test's own: nothing runs unasked, and nothing is left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.testing.app import engine, greet, ran

from synergon import Engine, Resources, State, testing
from synergon.testing import Tester


async def test_nothing_runs_before_the_drain(tester: Tester) -> None:
    handle = await greet.enqueue("Ada")
    assert (await handle.status()).state is State.READY
    (record,) = await tester.drain()
    assert (record.id, record.state, record.result) == (handle.id, State.SUCCEEDED, "hello Ada")
    assert await handle.result() == "hello Ada"


async def test_each_block_has_a_store_of_its_own() -> None:
    async with testing.memory(engine):
        await greet.enqueue("Ada")
    async with testing.memory(engine) as tester:
        assert tester.enqueued() == []


async def test_the_engine_is_given_back_as_it_was(tmp_path: Path) -> None:
    other = Engine(f"sqlite:///{tmp_path}/app.db")
    before = vars(other).copy()
    with pytest.raises(ZeroDivisionError):
        async with testing.memory(other):
            raise ZeroDivisionError
    assert vars(other) == before
    async with other:
        assert (tmp_path / "app.db").exists()


async def test_the_code_under_test_may_disconnect_and_come_back(tester: Tester) -> None:
    async with engine:
        await greet.enqueue("Ada")
    await engine.stop()
    async with engine:
        assert len(await tester.drain()) == 1


async def test_a_worker_of_the_app_takes_nothing(tester: Tester) -> None:
    async with engine.worker(), engine:
        handle = await greet.enqueue("Ada")
        await asyncio.sleep(0.02)
        assert (await handle.status()).state is State.READY
        await tester.drain()
    assert ran == ["Ada"]


async def test_a_worker_that_drains_does_so(tester: Tester) -> None:
    await greet.enqueue("Ada")
    async with engine.worker(drain=True):
        pass
    assert ran == ["Ada"]


async def test_what_was_enqueued_can_be_seen_after_the_block() -> None:
    async with testing.memory(engine) as tester:
        await greet.enqueue("Ada")
    tester.assert_enqueued(greet, "Ada")


def test_without_an_event_loop() -> None:
    with testing.memory(engine) as tester:
        handle = greet.enqueue_sync("Ada")
        tester.assert_enqueued(greet, "Ada")
        assert [record.result for record in tester.drain_sync()] == ["hello Ada"]
        assert handle.result_sync() == "hello Ada"


def test_without_an_event_loop_inline() -> None:
    with testing.inline(engine):
        assert greet.enqueue_sync("Ada").result_sync() == "hello Ada"


def test_the_clock_moves_without_an_event_loop() -> None:
    with testing.memory(engine) as tester:
        greet.with_options(delay=60).enqueue_sync("Ada")
        assert tester.drain_sync() == []
        tester.clock.advance(60)
        assert len(tester.drain_sync()) == 1


async def test_a_test_runs_what_it_enqueues_whatever_machine_it_needs_elsewhere() -> None:
    own = Engine("memory://")

    @own.task(cost=Resources(gpu=8), needs={"zone:eu"})
    async def train() -> str:
        return "trained"

    @own.task(urgent=True, cost=Resources(gpu=8))
    async def hurry() -> str:
        return "hurried"

    async with testing.memory(own) as tester:
        await train.enqueue()
        await train.with_options(forbids={"zone:eu"}, needs=(), cost=Resources(custom={"moon": 1})).enqueue()
        await hurry.enqueue()
        assert [record.result for record in await tester.drain()] == ["hurried", "trained", "trained"]
