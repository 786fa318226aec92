"""What is uninterruptible: a stop waits for it, a cancel and a timeout do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.full_node import Alarm, Deaf
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, ended, until, until_state

from synergon import State
from synergon.node.attempts.attempt import Stop


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_stop_waits_for_what_is_uninterruptible_whatever_the_grace(
    new_engine: NewEngine, memory_url: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synergon.node.duties.shutdown.LAST_SECONDS", 0.05)
    engine = new_engine(memory_url)
    gate, thread_gate, other = Gate(), ThreadGate(), Gate()

    async def on_loop() -> str:
        await gate.hold()
        return "whole"

    def in_thread() -> str:
        thread_gate.hold()
        return "whole"

    precious: Any = engine.task(uninterruptible=True)(on_loop if where == "loop" else in_thread)

    @engine.task
    async def plain() -> None:
        await other.hold()

    async with engine:
        worker = engine.worker(grace=0)
        await worker.__aenter__()
        handles = [await precious.enqueue(), await plain.enqueue()]
        await (gate if where == "loop" else thread_gate).until_reached()
        await other.until_reached()
        stop = asyncio.create_task(worker.__aexit__(None, None, None))
        assert (await until_state(handles[1], State.READY)).attempts == 0
        done, _ = await asyncio.wait([stop], timeout=0.2)
        assert not done
        gate.open()
        thread_gate.open()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await stop
        assert (await handles[0].status()).result == "whole"


async def test_what_is_uninterruptible_and_only_waits_for_room_does_not_begin_on_a_node_that_stops(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine = new_engine(memory_url, concurrency=1)
    deaf, alarm = Deaf(engine), Alarm(engine, uninterruptible=True)

    async with engine:
        async with engine.worker() as node:
            holder = await deaf.begin()
            handle = await alarm.waits_for_room()
            stopping = asyncio.ensure_future(node.stop(0))
            await until(lambda: node.runner.running[holder.id].stop is Stop.SHUTDOWN)
            deaf.open()
            await stopping
        assert (await handle.status()).state is State.READY
    assert alarm.rang == 0


async def test_a_cancel_and_a_timeout_end_what_is_uninterruptible(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    gate = Gate()

    @engine.task(uninterruptible=True)
    async def precious() -> None:
        await gate.hold()

    async with engine, engine.worker():
        late = await precious.with_options(timeout=0.05).enqueue()
        assert (await ended(late)).reason == "timeout"
        handle = await precious.enqueue()
        await until_state(handle, State.RUNNING)
        await handle.cancel()
        assert (await ended(handle)).state is State.CANCELLED
