"""`synergon bench`: what this machine and a store on it can do, measured through the public API.

A store that is given keeps no task of it: they are of kinds and a queue of their own, and are deleted at the end.
Without one, a file in the current folder serves and is removed; the system's folder for temporary files may well be
in memory, where a commit costs nothing and a measurement says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Self, Unpack

import msgspec

from synergon import Engine, State, SynergonError, TaskType
from synergon.cli.output import console, new_table, say, stderr, write_json
from synergon.model.lifecycle import LIVE
from synergon.options.options import TaskOptions

QUEUE: Final = "synergon-bench"
CONCURRENCY: Final = 500
PRODUCERS: Final = 64
LATENCY_SAMPLES: Final = 200

CHUNK: Final = 1000
"""How many tasks one bulk enqueue, or one deletion, holds."""

REST_SECONDS: Final = 0.005
"""Between two samples of latency, so that each finds an idle node."""

LOOK_SECONDS: Final = 0.001
PATIENCE_SECONDS: Final = 600.0
"""After this long a task that was to run is taken for lost."""

NumberTask = TaskType[[int], [int], Any, Any]


class Percentiles(msgspec.Struct, frozen=True):
    """How long something took, in milliseconds: usually, and at worst."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """The percentiles of these durations."""
        ordered = sorted(seconds)
        return cls(*(ordered[int(len(ordered) * share)] * 1000 for share in (0.50, 0.99)))


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """What `synergon bench` found."""

    store: dict[str, str]
    tasks: int
    bulk_enqueue_per_second: float
    awaited_enqueue_per_second: float
    awaited_enqueue_ms: Percentiles
    drain_per_second: float
    start_latency_ms: Percentiles
    succeeded: int
    """As the history has it; every task that was enqueued."""


async def echo(number: int) -> int:
    """A body that does nothing."""
    return number


class Bench:
    """An engine with kinds of its own, and ways to time what it does. To be used while connected: `async with`."""

    def __init__(self, url: str, *, concurrency: int = CONCURRENCY) -> None:
        self.engine = Engine(url, concurrency=concurrency, queues=[QUEUE])
        self._run = secrets.token_hex(4)
        self.ids: list[int] = []
        """Of all tasks that were made."""
        self.started_at: dict[int, float] = {}
        """When the body of each `stamped` task began, by its number."""
        self.on_loop = self.task("loop", echo)
        self.stamped = self.task("stamped", self._stamp)

    def task(self, label: str, body: Callable[[int], Any], **options: Unpack[TaskOptions]) -> NumberTask:
        """Register a body under a kind that no other task in the store has."""
        options |= {"name": f"bench-{self._run}-{label}", "queue": QUEUE}
        return self.engine.task(**options)(body)

    async def _stamp(self, number: int) -> int:
        self.started_at[number] = perf_counter()
        return number

    async def __aenter__(self) -> Self:
        await self.engine.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()

    async def delete_all(self) -> None:
        """Leave nothing in the store."""
        for first in range(0, len(self.ids), CHUNK):
            await self.engine.store.delete(self.ids[first : first + CHUNK])
        self.ids.clear()

    async def count(self, states: Iterable[State], task: NumberTask | None = None) -> int:
        """How many tasks of this run, or of one of its kinds, are in these states."""
        kinds = self.engine.kinds if task is None else {task.kind}
        counts = await self.engine.store.counts()
        return sum(number for (_, kind, state), number in counts.items() if kind in kinds and state in states)

    # ------------------------------------------------------------ measures

    async def enqueue_in_bulk(self, task: NumberTask, tasks: int) -> float:
        """Tasks per second, stored in large lists."""
        began = perf_counter()
        for first in range(0, tasks, CHUNK):
            handles = await task.enqueue_many((number,) for number in range(first, min(first + CHUNK, tasks)))
            self.ids.extend(handle.id for handle in handles)
        return tasks / (perf_counter() - began)

    async def enqueue_concurrently(self, task: NumberTask, tasks: int) -> tuple[float, Percentiles]:
        """Tasks per second from many producers that each await the durability of every task, and how long they do."""
        durations: list[float] = []

        async def produce(first: int) -> None:
            for number in range(first, tasks, PRODUCERS):
                asked = perf_counter()
                handle = await task.enqueue(number)
                durations.append(perf_counter() - asked)
                self.ids.append(handle.id)

        began = perf_counter()
        await asyncio.gather(*(produce(first) for first in range(PRODUCERS)))
        return tasks / (perf_counter() - began), Percentiles.of(durations)

    async def drain(self, task: NumberTask) -> float:
        """Tasks per second of a node, from its start until all that waited is in the history. `task` came last."""
        waiting = await self.count(LIVE)
        began = perf_counter()
        async with self.engine.worker():
            # Counting what is left of many costs more than the tasks do, so it begins when the last has ended.
            await self.engine.wait(self.ids[-1], timeout=PATIENCE_SECONDS)
            while await self.count(LIVE, task):  # noqa: ASYNC110  nothing tells the end of all
                await asyncio.sleep(LOOK_SECONDS)
            return waiting / (perf_counter() - began)

    async def start_latencies(self, samples: int) -> list[float]:
        """Seconds from the call of an enqueue to the first line of the body, one at a time on an idle node."""
        latencies = []
        async with self.engine.worker():
            for number in range(samples):
                await asyncio.sleep(REST_SECONDS)
                asked = perf_counter()
                handle = await self.stamped.enqueue(number)
                self.ids.append(handle.id)
                await handle.result(timeout=PATIENCE_SECONDS)
                latencies.append(self.started_at[number] - asked)
        return latencies


# ---------------------------------------------------------------- the command


def main(url: str | None, tasks: int, as_json: bool) -> None:
    """Measure the store at `url`, or a new SQLite file in the current folder, and print what was found."""
    with _file_here() if url is None else contextlib.nullcontext(url) as its_url:
        results = asyncio.run(_measure(its_url, tasks))
    if as_json:
        write_json(results)
    else:
        _print(results)


@contextlib.contextmanager
def _file_here() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix=".synergon-bench-", dir=Path.cwd()) as folder:
        yield f"sqlite:///{folder}/bench.db"


async def _measure(url: str, tasks: int) -> Results:
    with stderr.status("connects") as status:
        async with Bench(url) as bench:
            try:
                return await _measure_all(bench, tasks, status.update)
            finally:
                status.update("deletes what it made")
                await bench.delete_all()


async def _measure_all(bench: Bench, tasks: int, tell: Callable[[str], None]) -> Results:
    tell(f"enqueues {tasks} tasks in lists of {CHUNK}")
    bulk_rate = await bench.enqueue_in_bulk(bench.on_loop, tasks)
    tell(f"runs {tasks} tasks, {CONCURRENCY} at once")
    drain_rate = await bench.drain(bench.on_loop)
    tell(f"enqueues {tasks} tasks from {PRODUCERS} producers")
    awaited_rate, awaited = await bench.enqueue_concurrently(bench.on_loop, tasks)
    tell(f"runs {tasks} tasks, {CONCURRENCY} at once, again")
    drain_rate = max(drain_rate, await bench.drain(bench.on_loop))
    tell("enqueues one task at a time on an idle node")
    latencies = await bench.start_latencies(min(LATENCY_SAMPLES, tasks))
    succeeded = await bench.count([State.SUCCEEDED])
    if succeeded != len(bench.ids):
        raise SynergonError(f"{len(bench.ids)} tasks were enqueued, but {succeeded} of them have succeeded")
    return Results(
        store=await bench.engine.store.describe(),
        tasks=tasks,
        bulk_enqueue_per_second=bulk_rate,
        awaited_enqueue_per_second=awaited_rate,
        awaited_enqueue_ms=awaited,
        drain_per_second=drain_rate,
        start_latency_ms=Percentiles.of(latencies),
        succeeded=succeeded,
    )


def _print(results: Results) -> None:
    awaited, latency = results.awaited_enqueue_ms, results.start_latency_ms
    table = new_table("", "per second", "p50 ms", "p99 ms", numbers=("per second", "p50 ms", "p99 ms"))
    table.add_row(f"enqueue in lists of {CHUNK}", f"{results.bulk_enqueue_per_second:,.0f}")
    table.add_row(
        f"enqueue from {PRODUCERS} producers, each task awaited",
        f"{results.awaited_enqueue_per_second:,.0f}",
        f"{awaited.p50:.2f}",
        f"{awaited.p99:.2f}",
    )
    table.add_row(f"run, one node, {CONCURRENCY} at once", f"{results.drain_per_second:,.0f}")
    table.add_row("from enqueue to start, idle node", "", f"{latency.p50:.2f}", f"{latency.p99:.2f}")
    console.print(table)
    say(f"{results.succeeded:,} tasks that do nothing; {', '.join(f'{name} {f}' for name, f in results.store.items())}")
