"""Nobody yields in vain: not for what is refused, taken elsewhere or given back, and not who need not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.counted_functions import node_of
from tests.node.every_store import every_url  # noqa: F401
from tests.node.full_node import Alarm, Crowd, Deaf, given_back, impatient  # noqa: F401
from tests.support import PATIENCE_SECONDS, Gate, ended, make_troubled, until

from synergon import Candidate, State


async def test_refused_by_can_accept_nobody_yields(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url, concurrency=2)
    crowd, alarm = Crowd(engine), Alarm(engine)
    asked = asyncio.Event()

    @alarm.task.can_accept  # type: ignore[untyped-decorator]  # its options are a dict
    async def not_here(candidates: list[Candidate]) -> list[Candidate]:
        asked.set()
        return []

    async with engine, engine.worker():
        await crowd.fill(2)
        handle = await alarm.set_off()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asked.wait()
        await asyncio.sleep(0.05)
        assert crowd.preempted == []
        assert (await handle.status()).state is State.READY
        crowd.open()


async def test_accepted_by_can_accept_somebody_yields(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url, concurrency=2)
    crowd, alarm = Crowd(engine), Alarm(engine)

    @alarm.task.can_accept  # type: ignore[untyped-decorator]  # its options are a dict
    async def here(candidates: list[Candidate]) -> list[Candidate]:
        return candidates

    async with engine, engine.worker():
        await crowd.fill(2)
        await alarm.rings()
        assert crowd.preempted == [2]
        crowd.open()


async def test_taken_by_a_peer_nobody_yields(new_engine: NewEngine, url: str) -> None:
    full, free = new_engine(url, concurrency=2), new_engine(url, sweep=0.02)
    stores = make_troubled(full)
    crowd = Crowd(full)
    is_late = asyncio.Event()
    handles: list[Any] = []
    Alarm(full, "full")
    alarm = Alarm(free, "free")

    async def comes_late(claim: Callable[[], Awaitable[Any]]) -> Any:
        await ended(handles[0])
        is_late.set()
        return await claim()

    async with full, free, full.worker():
        await crowd.fill(2)
        stores[-1].cause("claim", comes_late)
        handles.append(await alarm.set_off())
        node_of(full).scheduler.wake_all()
        async with free.worker():
            assert await handles[0].result(PATIENCE_SECONDS) == "free"
            async with asyncio.timeout(PATIENCE_SECONDS):
                await is_late.wait()
            await until(lambda: not node_of(full).scheduler.is_claiming)
        assert crowd.preempted == []
        stores[-1].end("claim")
        crowd.open()


@pytest.mark.usefixtures("impatient")
async def test_if_the_one_who_was_asked_will_not_yield_another_node_takes_over_and_nobody_else_is_asked(
    new_engine: NewEngine, url: str
) -> None:
    full, free = new_engine(url, concurrency=2, sweep=0.05), new_engine(url, sweep=0.05)
    deaf, alarm = Deaf(full, asks=True), Alarm(full, "full")
    Alarm(free, "free")

    async with full, free, full.worker():
        handles = [await deaf.begin(number) for number in (1, 2)]
        handle = await alarm.waits_for_room()
        await given_back(handle)
        await asyncio.sleep(0.2)
        assert (await handle.status()).claim_no == 1, "this node does not take it again"
        async with free.worker():
            assert await handle.result(PATIENCE_SECONDS) == "free"
        deaf.open()
        assert [await one.result(PATIENCE_SECONDS) for one in handles] == ["done", "done"]
    assert len(deaf.told) == 1


@pytest.mark.usefixtures("impatient")
async def test_what_nobody_yielded_to_starts_when_something_ends_by_itself(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine = new_engine(memory_url, concurrency=1)
    deaf, alarm = Deaf(engine), Alarm(engine)

    async with engine, engine.worker():
        first = await deaf.begin()
        handle = await alarm.waits_for_room()
        await given_back(handle)
        deaf.open()
        assert await handle.result(PATIENCE_SECONDS) == "rang"
        assert await first.result(PATIENCE_SECONDS) == "done"


async def test_work_that_is_not_preemptible_does_not_yield(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url, concurrency=2)
    gate, alarm = Gate(), Alarm(engine)

    @engine.task
    async def plain() -> str:
        await gate.hold()
        return "undisturbed"

    @engine.task(uninterruptible=True)
    async def precious() -> str:
        await gate.hold()
        return "undisturbed"

    async with engine, engine.worker():
        handles = [await plain.enqueue(), await precious.enqueue()]
        await until(lambda: engine._node is not None and len(engine._node.runner.running) == 2)
        handle = await alarm.set_off()
        await asyncio.sleep(0.05)
        record = await handle.status()
        assert (record.state, record.claim_no) == (State.READY, 0)
        gate.open()
        assert await handle.result(PATIENCE_SECONDS) == "rang"
        assert [await one.result(PATIENCE_SECONDS) for one in handles] == ["undisturbed"] * 2
