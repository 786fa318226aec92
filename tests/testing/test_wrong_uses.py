"""Uses that make no sense are refused with what to do instead."""

from __future__ import annotations

import pytest
from tests.testing.app import engine, greet

from synergon import Engine, OptionError, State, SynergonError, TaskFailed, testing
from synergon.testing import Tester


def test_what_is_no_engine() -> None:
    with pytest.raises(OptionError, match="needs an Engine, got 'app'"):
        testing.memory("app")  # type: ignore[arg-type]  # wrong on purpose


async def test_one_tester_in_two_blocks(tester: Tester) -> None:
    with pytest.raises(SynergonError, match="has begun already"):
        async with tester:
            pass
    assert (await (await greet.enqueue("Ada")).status()).state is State.READY


async def test_a_drain_outside_the_block() -> None:
    tester = testing.memory(engine)
    for _ in ("before", "after"):
        with pytest.raises(SynergonError, match="inside the block"):
            await tester.drain()
        with pytest.raises(SynergonError, match="inside the block"):
            tester.drain_sync()
        if not tester.enqueued():
            async with tester:
                await greet.enqueue("Ada")


async def test_a_drain_inside_a_body() -> None:
    own = Engine("memory://")

    async with testing.memory(own) as tester:

        @own.task
        async def drains() -> None:
            await tester.drain()

        handle = await drains.enqueue()
        with pytest.raises(TaskFailed, match="would wait for that function"):
            await handle.result()


async def test_a_limit_that_is_no_number(tester: Tester) -> None:
    with pytest.raises(OptionError, match="limit must be"):
        await tester.drain(limit=0)


async def test_a_connection_left_open() -> None:
    own = Engine("memory://")
    with pytest.raises(SynergonError, match="left the engine connected"), testing.memory(own):
        await own.connect()
