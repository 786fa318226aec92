"""A limit is raised: how soon those that waited for it have all begun."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final

from benchmarks.figures import Measured
from synergon import Engine
from synergon.cli.bench import PATIENCE_SECONDS, Percentiles

LOW: Final = 4
HIGH: Final = 8


class Room:
    """Bodies stay in it until they are let go."""

    def __init__(self) -> None:
        self.inside = 0
        self.are_in: dict[int, asyncio.Event] = {LOW: asyncio.Event(), HIGH: asyncio.Event()}
        self.door = asyncio.Event()

    async def body(self, number: int) -> int:
        self.inside += 1
        if self.inside in self.are_in:
            self.are_in[self.inside].set()
        await self.door.wait()
        self.inside -= 1
        return number

    def close(self) -> None:
        """For the next round."""
        self.door = asyncio.Event()
        self.are_in = {LOW: asyncio.Event(), HIGH: asyncio.Event()}


async def measure(subject: str, url: str, rounds: int, measured: Measured) -> None:
    """Of a limit by name, and of a line's; each is raised by an engine that is not the node's."""
    kind_request = Room()
    engine, operator = Engine(url), Engine(url)
    engine.limit("raised", LOW)
    by_name = engine.task(name="by_name", limits=["raised"])(kind_request.body)
    in_line = engine.task(name="in_line_raised", limit_by=lambda number: "one", limit=LOW)(kind_request.body)  # noqa: ARG005
    async with engine, operator, engine.worker(), asyncio.timeout(PATIENCE_SECONDS):
        for limit, task in (("raised", by_name), ("key:in_line_raised", in_line)):
            label = "raised_line" if task is in_line else "raised_limit"
            delays = [await _round(kind_request, operator, limit, task) for _ in range(rounds)]
            measured.add_percentiles(f"{subject}.{label}", Percentiles.of(delays))


async def _round(kind_request: Room, operator: Engine, limit: str, task: Any) -> float:
    await operator.set_limit(limit, LOW)
    handles = await task.enqueue_many((number,) for number in range(HIGH))
    await kind_request.are_in[LOW].wait()
    asked = perf_counter()
    await operator.set_limit(limit, HIGH)
    await kind_request.are_in[HIGH].wait()
    delay = perf_counter() - asked
    kind_request.door.set()
    await asyncio.gather(*(handle.result() for handle in handles))
    kind_request.close()
    return delay
