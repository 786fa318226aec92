"""An urgent task that was claimed and waits for its room can go another way all the while."""

from __future__ import annotations

import asyncio

from tests.conftest import NewEngine
from tests.node.full_node import Alarm, Deaf, given_back
from tests.support import PATIENCE_SECONDS, ended

from synergon import State


async def test_an_urgent_task_that_waits_for_room_can_be_cancelled(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url, concurrency=1)
    deaf, alarm = Deaf(engine), Alarm(engine)

    async with engine, engine.worker():
        first = await deaf.begin()
        handle = await alarm.waits_for_room()
        await handle.cancel()
        assert (await ended(handle)).state is State.CANCELLED
        deaf.open()
        assert await first.result(PATIENCE_SECONDS) == "done"
        await alarm.rings()  # its room is free again


async def test_an_urgent_task_that_waits_for_room_goes_back_when_the_node_stops(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine = new_engine(memory_url, concurrency=1)
    deaf, alarm = Deaf(engine), Alarm(engine)

    async with engine:
        async with engine.worker(grace=0):
            await deaf.begin()
            handle = await alarm.waits_for_room()
            asyncio.get_running_loop().call_later(0.1, deaf.open)
        await given_back(handle)


async def test_an_urgent_task_that_waits_for_room_goes_back_when_the_node_is_cordoned(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine = new_engine(memory_url, concurrency=1)
    deaf, alarm = Deaf(engine), Alarm(engine)

    async with engine, engine.worker() as node:
        first = await deaf.begin()
        handle = await alarm.waits_for_room()
        await engine.cordon(node.id)
        await given_back(handle)
        deaf.open()
        await first.result(PATIENCE_SECONDS)
        assert alarm.rang == 0
        await engine.uncordon(node.id)
        await handle.result(PATIENCE_SECONDS)
