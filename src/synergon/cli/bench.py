"""`synergon bench`: measures a store on this machine through the public API.

In a given store, the bench uses a queue and kinds of its own, and deletes its tasks at the end. Without a given store,
it uses a file in the current folder, and removes it. It does not use the system's temporary folder, which is often in
memory, where commits cost nothing.
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

import synergon.node.node  # noqa: F401  loaded before the first measurement, as in a running worker
from synergon import Engine, State, SynergonError, TaskType
from synergon.cli.output import new_table, print_line, print_table, stderr, write_json
from synergon.model.lifecycle import LIVE
from synergon.options.options import TaskOptions

QUEUE: Final = "synergon-bench"
CONCURRENCY: Final = 500
PRODUCERS: Final = 64
LATENCY_SAMPLES: Final = 200

CHUNK: Final = 1000
"""The number of tasks in one bulk enqueue or deletion."""

IDLE_SECONDS: Final = 0.005
"""The pause between two samples of latency, so that each sample is taken on an idle node."""

POLL_SECONDS: Final = 0.001
PATIENCE_SECONDS: Final = 600.0
"""A task that has not run after this many seconds counts as lost."""

NumberTask = TaskType[[int], [int], Any, Any]


class Percentiles(msgspec.Struct, frozen=True):
    """The median and the 99th percentile of durations, in milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """The percentiles of these durations."""
        ordered = sorted(seconds)
        return cls(*(ordered[int(len(ordered) * share)] * 1000 for share in (0.50, 0.99)))


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of `synergon bench`."""

    store: dict[str, str]
    tasks: int
    bulk_enqueue_per_second: float
    awaited_enqueue_per_second: float
    awaited_enqueue_ms: Percentiles
    drain_per_second: float
    start_latency_ms: Percentiles
    succeeded: int
    """The number of succeeded tasks in the history. It equals the number of enqueued tasks."""


async def echo(number: int) -> int:
    """A task function that does nothing."""
    return number


class Bench:
    """An engine with kinds of its own, and methods that measure it. Use it with `async with`, which connects."""

    def __init__(self, url: str, *, concurrency: int = CONCURRENCY) -> None:
        self.engine: Final = Engine(url, concurrency=concurrency, queues=[QUEUE])
        self._run = secrets.token_hex(4)
        self.ids: list[int] = []
        """The ids of all tasks that were enqueued."""
        self.started_at: dict[int, float] = {}
        """When the function of each `stamped` task started, by the number that it was given."""
        self.on_loop: Final = self.task("loop", echo)
        self.stamped: Final = self.task("stamped", self._stamp)

    def task(self, label: str, function: Callable[[int], Any], **options: Unpack[TaskOptions]) -> NumberTask:
        """Register a function under a kind that is unique in the store."""
        options |= {"name": f"bench-{self._run}-{label}", "queue": QUEUE}
        return self.engine.task(**options)(function)

    async def _stamp(self, number: int) -> int:
        self.started_at[number] = perf_counter()
        return number

    async def __aenter__(self) -> Self:
        await self.engine.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()

    async def delete_all(self) -> None:
        """Delete all tasks of this bench."""
        for first in range(0, len(self.ids), CHUNK):
            await self.engine._store.delete(self.ids[first : first + CHUNK])
        self.ids.clear()

    async def count(self, states: Iterable[State], task: NumberTask | None = None) -> int:
        """The number of tasks of this bench, or of one of its kinds, in these states."""
        kinds = self.engine.kinds if task is None else {task.kind}
        counts = await self.engine._store.counts()
        return sum(number for (_, kind, state), number in counts.items() if kind in kinds and state in states)

    # ------------------------------------------------------------ measures

    async def enqueue_in_bulk(self, task: NumberTask, tasks: int) -> float:
        """Enqueue tasks in lists of CHUNK. Returns tasks per second."""
        began = perf_counter()
        for first in range(0, tasks, CHUNK):
            handles = await task.enqueue_many((number,) for number in range(first, min(first + CHUNK, tasks)))
            self.ids.extend(handle.id for handle in handles)
        return tasks / (perf_counter() - began)

    async def enqueue_concurrently(self, task: NumberTask, tasks: int) -> tuple[float, Percentiles]:
        """Enqueue tasks from many producers, each of which awaits every enqueue. Returns tasks per second, and the
        durations."""
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
        """Run all waiting tasks on a node. Returns tasks per second, from the start of the node to the end of the last
        task. `task` must have been enqueued last."""
        waiting = await self.count(LIVE)
        began = perf_counter()
        async with self.engine.worker():
            # Counting many tasks costs more than running them, so it starts when the last one has ended.
            await self.engine.wait(self.ids[-1], timeout=PATIENCE_SECONDS)
            while await self.count(LIVE, task):  # noqa: ASYNC110  no event announces that all have ended
                await asyncio.sleep(POLL_SECONDS)
            return waiting / (perf_counter() - began)

    async def start_latencies(self, samples: int) -> list[float]:
        """The seconds from the call of enqueue to the start of the task function, measured one task at a time on an
        idle node."""
        latencies = []
        async with self.engine.worker():
            for number in range(samples):
                await asyncio.sleep(IDLE_SECONDS)
                asked = perf_counter()
                handle = await self.stamped.enqueue(number)
                self.ids.append(handle.id)
                await handle.result(timeout=PATIENCE_SECONDS)
                latencies.append(self.started_at[number] - asked)
        return latencies


# ---------------------------------------------------------------- the command


def main(url: str | None, tasks: int, as_json: bool) -> None:
    """Measure the store at `url`, or a new SQLite file in the current folder, and print the figures."""
    with _temporary_file() if url is None else contextlib.nullcontext(url) as measured_url:
        results = asyncio.run(_measure(measured_url, tasks))
    if as_json:
        write_json(results)
    else:
        _print(results)


@contextlib.contextmanager
def _temporary_file() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix=".synergon-bench-", dir=Path.cwd()) as folder:
        yield f"sqlite:///{folder}/bench.db"


async def _measure(url: str, tasks: int) -> Results:
    with stderr.status("connecting") as status:
        async with Bench(url) as bench:
            try:
                return await _measure_all(bench, tasks, status.update)
            finally:
                status.update("deleting the tasks of this bench")
                await bench.delete_all()


async def _measure_all(bench: Bench, tasks: int, show: Callable[[str], None]) -> Results:
    show(f"enqueueing {tasks} tasks in lists of {CHUNK}")
    bulk_rate = await bench.enqueue_in_bulk(bench.on_loop, tasks)
    show(f"running {tasks} tasks, {CONCURRENCY} at once")
    drain_rate = await bench.drain(bench.on_loop)
    show(f"enqueueing {tasks} tasks from {PRODUCERS} producers")
    awaited_rate, awaited = await bench.enqueue_concurrently(bench.on_loop, tasks)
    show(f"running {tasks} tasks, {CONCURRENCY} at once, again")
    drain_rate = max(drain_rate, await bench.drain(bench.on_loop))
    show("enqueueing one task at a time on an idle node")
    latencies = await bench.start_latencies(min(LATENCY_SAMPLES, tasks))
    succeeded = await bench.count([State.SUCCEEDED])
    if succeeded != len(bench.ids):
        raise SynergonError(f"{len(bench.ids)} tasks were enqueued, but only {succeeded} of them succeeded")
    return Results(
        store=await bench.engine._store.describe(),
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
    print_table(table)
    store = ", ".join(f"{name} {fact}" for name, fact in results.store.items())
    print_line(f"{results.succeeded:,} tasks that do nothing; {store}")
