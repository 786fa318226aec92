"""Providers share the slots of a node: one provider's backlog never delays another's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, until

from synergon import Engine, TaskType


class Stage:
    """Providers whose servers take everything, and bodies that stay until they are let go."""

    def __init__(self, engine: Engine, *others: str) -> None:
        self.began: list[str] = []
        self._permits = {name: asyncio.Semaphore(0) for name in ("busy", "quiet", *others)}
        self.busy = self._add(engine, "busy")
        self.others = [self._add(engine, name) for name in others]
        self.quiet = self._add(engine, "quiet")

    def _add(self, engine: Engine, name: str) -> TaskType[[], [], Coroutine[Any, Any, None], None]:
        provider = engine.provider(name, servers=["everything"], capacity=None)

        @provider.task(name=name)
        async def body() -> None:
            self.began.append(name)
            await self._permits[name].acquire()

        return body

    def dropped_task(self, name: str, number: int = 1) -> None:
        for _ in range(number):
            self._permits[name].release()

    def most(self) -> str:
        """The provider that has most."""
        return Counter(self.began).most_common(1)[0][0]

    async def until_began(self, number: int) -> Counter[str]:
        await until(lambda: len(self.began) >= number)
        return Counter(self.began)


async def test_the_next_free_slot_goes_to_the_provider_that_has_fewer(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=4)
    stage = Stage(engine)
    async with engine.worker():
        await stage.busy.enqueue_many([() for _ in range(20)])
        await stage.until_began(4)
        await stage.quiet.enqueue()
        stage.dropped_task("busy")
        assert (await stage.until_began(5))["quiet"] == 1
        stage.dropped_task("quiet")
        assert (await stage.until_began(6))["busy"] == 5  # what nobody else wants is its own
        stage.dropped_task("busy", 20)


@pytest.mark.parametrize(("slots", "others"), [(4, 1), (5, 2), (6, 2), (7, 4)])
async def test_uneven_slots_do_not_make_a_provider_wait_for_a_backlog(
    new_engine: NewEngine, memory_url: str, slots: int, others: int
) -> None:
    engine = new_engine(memory_url, concurrency=slots)
    names = [f"other-{number}" for number in range(others)]
    stage = Stage(engine, *names)
    async with engine:
        for body in (stage.busy, *stage.others):
            await body.enqueue_many([() for _ in range(50)])
        async with engine.worker(grace=0):
            await stage.until_began(slots)
            await stage.quiet.enqueue()
            crowded = stage.most()
            stage.dropped_task(crowded)
            assert (await stage.until_began(slots + 1))["quiet"] == 1


async def test_two_backlogs_get_half_of_the_slots_each_whichever_came_first(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=4)
    stage = Stage(engine)
    async with engine:
        await stage.busy.enqueue_many([() for _ in range(50)])
        await stage.quiet.enqueue_many([() for _ in range(50)])
        async with engine.worker(grace=0):
            assert await stage.until_began(4) == {"busy": 2, "quiet": 2}
            stage.dropped_task("busy")
            assert await stage.until_began(5) == {"busy": 3, "quiet": 2}


async def test_a_provider_that_is_alone_gets_all_slots(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=5)
    stage = Stage(engine)
    async with engine:
        handles = await stage.busy.enqueue_many([() for _ in range(20)])
        async with engine.worker():
            assert await stage.until_began(5) == {"busy": 5}
            stage.dropped_task("busy", 20)
            for handle in handles:
                await handle.result(PATIENCE_SECONDS)
