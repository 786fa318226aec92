"""`synergon bench`: what this machine and a store on it can do, measured through the public API.

A store that is given keeps nothing of it: the tasks are of kinds and a queue of their own, and are deleted at the end.
Without one, a file in the current folder serves and is removed; a folder for temporary files may well be in memory,
where a commit costs nothing and a measurement says nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, Final

import msgspec

from synergon import Engine, State
from synergon.lifecycle import LIVE
from synergon.task import TaskType

QUEUE: Final = "synergon-bench"
CONCURRENCY: Final = 500
PRODUCERS: Final = 64
CHUNK: Final = 1000
"""How many tasks one bulk enqueue holds, and one deletion."""

LATENCY_SAMPLES: Final = 200
REST_SECONDS: Final = 0.005
"""Between two samples of latency, so that each finds an idle node."""

LOOK_SECONDS: Final = 0.001

NumberTask = TaskType[[int], Any, int]


class Percentiles(msgspec.Struct, frozen=True):
    """How long something took, in milliseconds: usually, and at worst."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """The percentiles of these durations."""
        ordered = sorted(seconds)
        return cls(*(ordered[int(len(ordered) * share)] * 1000 for share in (0.50, 0.99)))


async def echo(number: int) -> int:
    """A coroutine that does nothing."""
    return number


def echo_plainly(number: int) -> int:
    """A plain function that does nothing, for threads and processes."""
    return number


class Bench:
    """An engine with kinds of its own, the tasks it made, and the ways to time them.

    To be used while it is connected (`async with bench:`); what it made is deleted when that ends.
    """

    def __init__(self, url: str, *, concurrency: int = CONCURRENCY) -> None:
        self.engine = Engine(url, concurrency=concurrency, queues=[QUEUE])
        self._run = secrets.token_hex(4)
        self._ids: list[int] = []
        self._started: dict[int, float] = {}
        self.on_loop: NumberTask = self.engine.task(name=self.kind("loop"), queue=QUEUE)(echo)
        self.stamped: NumberTask = self.engine.task(name=self.kind("stamped"), queue=QUEUE)(self._stamp)

    def kind(self, name: str) -> str:
        """The name of a kind that no other task in the store has."""
        return f"bench-{self._run}-{name}"

    async def _stamp(self, number: int) -> int:
        self._started[number] = perf_counter()
        return number

    async def __aenter__(self) -> Bench:
        await self.engine.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._delete()
        finally:
            await self.engine.close()

    async def _delete(self) -> None:
        for first in range(0, len(self._ids), CHUNK):
            await self.engine.store.delete(self._ids[first : first + CHUNK])

    # ------------------------------------------------------------ measures

    async def enqueue_in_bulk(self, task: NumberTask, tasks: int) -> float:
        """Tasks per second, stored in large lists."""
        began = perf_counter()
        for first in range(0, tasks, CHUNK):
            handles = await task.enqueue_many((number,) for number in range(first, min(first + CHUNK, tasks)))
            self._ids.extend(handle.id for handle in handles)
        return tasks / (perf_counter() - began)

    async def enqueue_concurrently(self, task: NumberTask, tasks: int) -> tuple[float, Percentiles]:
        """Tasks per second from many producers that each await the durability of every task, and how long they do."""
        durations: list[float] = []

        async def produce(count: int) -> None:
            for number in range(count):
                asked = perf_counter()
                handle = await task.enqueue(number)
                durations.append(perf_counter() - asked)
                self._ids.append(handle.id)

        began = perf_counter()
        await asyncio.gather(*(produce(tasks // PRODUCERS) for _ in range(PRODUCERS)))
        return len(durations) / (perf_counter() - began), Percentiles.of(durations)

    async def drain(self, task: NumberTask) -> float:
        """Tasks per second of a node, from its start until everything that waited is in the history."""
        waiting = await self.count(task, LIVE)
        began = perf_counter()
        async with self.engine.worker():
            # Counting what is left would cost the node more than the tasks do, so it begins when the last has ended.
            await self.engine.wait(self._ids[-1])
            while await self.count(task, LIVE):
                await asyncio.sleep(LOOK_SECONDS)
            return waiting / (perf_counter() - began)

    async def start_latencies(self, samples: int = LATENCY_SAMPLES) -> Percentiles:
        """From the call of an enqueue to the first line of the body, one at a time on an idle node."""
        durations = []
        async with self.engine.worker():
            for number in range(samples):
                await asyncio.sleep(REST_SECONDS)
                asked = perf_counter()
                handle = await self.stamped.enqueue(number)
                self._ids.append(handle.id)
                await handle.result(timeout=60)
                durations.append(self._started[number] - asked)
        return Percentiles.of(durations)

    async def count(self, task: NumberTask, states: Iterator[State] | frozenset[State]) -> int:
        """How many tasks of this kind are in one of these states."""
        counts = await self.engine.counts(kind=task.kind)
        return sum(counts[state] for state in states)
