"""One system on PostgreSQL: tasks come in, one node and then two work them off, an idle node is told of a task by
another process, and tasks start when they are due."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg

from benchmarks.figures import Measured
from benchmarks.postgres.processes import PATIENCE_SECONDS, SystemProcess, done, started
from benchmarks.postgres.server import DURABLE, SETTINGS, running_server
from benchmarks.postgres.systems import SYSTEMS, System
from benchmarks.postgres.tally import Tally
from benchmarks.sizes import Sizes
from synergon.cli.bench import Percentiles

NODES: Final = (1, 2)
DRAIN_SECONDS: Final = 90.0
"""A system that has not run everything by then gets a line that says so instead of a figure."""

SETTLE_SECONDS: Final = 20.0
"""For the tables to say what the bodies have said already."""

SILENT_SECONDS: Final = 1.0
"""What a system whose tables do not tell gets for its last outcomes."""

LOOK_SECONDS: Final = 0.02
WARM_UP: Final = 5
"""Samples of latency that do not count: the first ones meet a worker that has just started."""

LONGEST_REST_SECONDS: Final = 0.1
"""Between two samples of latency; random, so that they meet whoever polls at any phase."""


def subject(name: str) -> Callable[[Path, Sizes], Measured]:
    """What the run measures under this name."""
    return partial(_measure, name)


def on_sqlite(folder: Path, sizes: Sizes) -> Measured:
    """The latency between processes on SQLite, where nobody else's is measured."""
    turn = Turn(SYSTEMS["synergon"], f"sqlite:///{folder}/hints.db", folder, sizes, name="hints")
    return asyncio.run(turn.told_by_another())


def _measure(name: str, folder: Path, sizes: Sizes) -> Measured:
    system = SYSTEMS[name]
    version = system.version()
    if version is None:
        return Measured(facts={name: "not installed, not measured"})
    with running_server(folder) as url:
        measured = asyncio.run(Turn(system, url, folder, sizes).run())
    measured.facts[name] = version
    return measured


class Turn:
    """One turn of a system, on a server of its own."""

    def __init__(self, system: System, url: str, folder: Path, sizes: Sizes, *, name: str = "") -> None:
        self._system = system
        self._subject = name or f"pg_{system.name}"
        self._url = url
        self._folder = folder
        self._sizes = sizes
        self._enqueued = 0
        self._measured = Measured()

    async def run(self) -> Measured:
        """Everything, in the order in which it makes sense."""
        async with started(self._system, self._url, "set_up") as process:
            await process.ended()
        for nodes in NODES:
            await self._fill_and_drain(nodes)
        await self._idle_node()
        await self._check()
        return self._measured

    async def told_by_another(self) -> Measured:
        """Only how soon an idle node begins what another process has enqueued, whose event loop runs or rests between
        the calls."""
        async with started(self._system, self._url, "work") as worker:
            await self._latencies(worker)
            await self._latencies(worker, "produce_resting", "idle_start_by_a_resting_loop")
        return self._measured

    def _name(self, figure: str) -> str:
        return f"{self._subject}.{figure}"

    def _next_numbers(self, tasks: int) -> range:
        """Numbers that no task has had: one that comes back later is not mistaken for another."""
        self._enqueued += tasks
        return range(self._enqueued - tasks, self._enqueued)

    async def _fill_and_drain(self, nodes: int) -> None:
        tasks = round(self._sizes.postgres_tasks * self._system.share)
        numbers = self._next_numbers(tasks)
        filled = await done(self._system, self._url, "fill", numbers.start, tasks, about="seconds")
        self._measured.add(self._name("bulk_enqueue"), "/s", tasks / filled["seconds"])
        name = self._name(f"drain_with_{nodes}_node{'s' * (nodes > 1)}")
        file = self._folder / f"tally-{nodes}"
        tally = Tally.make(file, numbers.stop)
        async with contextlib.AsyncExitStack() as stack:
            work = partial(started, self._system, self._url, "work", tally=file)
            workers = [await stack.enter_async_context(work()) for _ in range(nodes)]
            began = asyncio.create_task(_first(workers))
            ended = await tally.full(numbers, DRAIN_SECONDS)
            if ended is None:
                began.cancel()
                ran = tally.count(numbers)
                self._measured.notes[name] = f"did not end within {DRAIN_SECONDS:g} s (ran {ran:,} of {tasks:,})"
                return
            self._measured.add(name, "/s", tasks / (ended - await began))
            await self._settled(ended)

    async def _settled(self, since: float | None = None) -> None:
        """Let the tables catch up with the bodies before the worker is killed, and note how long that took."""
        if self._system.is_over is None:
            await asyncio.sleep(SILENT_SECONDS)
            return
        connection = await asyncpg.connect(self._url)
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while not await connection.fetchval(self._system.is_over):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            return  # what is missing is counted at the end
        finally:
            await connection.close()
        if since is not None:
            self._measured.add(self._name("settled_after_last_body"), "ms", (time.monotonic() - since) * 1000)

    async def _idle_node(self) -> None:
        async with started(self._system, self._url, "work") as worker:
            for name, measure in (("idle_start", self._latencies), ("scheduled_lateness", self._lateness)):
                try:
                    await measure(worker)
                except TimeoutError:
                    self._measured.notes[self._name(name)] = f"nothing ran for {PATIENCE_SECONDS:g} s"
                    return
            await self._settled()

    async def _latencies(self, worker: SystemProcess, how: str = "produce", name: str = "idle_start") -> None:
        """From the call in one process to the first line of the body in another, one at a time."""
        latencies = []
        async with started(self._system, self._url, how) as producer:
            await producer.hear("ready")
            for number in self._next_numbers(WARM_UP + self._sizes.postgres_latency_samples):
                await asyncio.sleep(random.uniform(0, LONGEST_REST_SECONDS))
                await producer.say(number)
                began = (await _stamps(worker, [number]))[number]["moment"]
                latencies.append(began - (await producer.hear("asked"))["asked"])
        self._measured.add_percentiles(self._name(name), Percentiles.of(latencies[WARM_UP:]))

    async def _lateness(self, worker: SystemProcess) -> None:
        """From the due moment to the first line of the body."""
        numbers = self._next_numbers(self._sizes.scheduled_tasks)
        due = (await done(self._system, self._url, "schedule", numbers.start, len(numbers), about="due"))["due"]
        stamps = await _stamps(worker, numbers)
        lateness = [stamps[number]["wall"] - moment for number, moment in zip(numbers, due, strict=True)]
        self._measured.add_percentiles(self._name("scheduled_lateness"), Percentiles.of(lateness))

    async def _check(self) -> None:
        connection = await asyncpg.connect(self._url)
        succeeded = await connection.fetchval(self._system.succeeded) if self._system.succeeded else None
        settings = {name: await connection.fetchval("SELECT current_setting($1)", name) for name in SETTINGS}
        version = await connection.fetchval("SHOW server_version")
        await connection.close()
        who = self._system.name
        if succeeded is not None:
            self._measured.check(f"{who} on PostgreSQL: every task succeeded", expected=self._enqueued, found=succeeded)
        durable = {name: settings[name] for name in DURABLE}
        self._measured.check(f"{who} on PostgreSQL: every commit is synced", expected=DURABLE, found=durable)
        said = " ".join(f"{name}={value}" for name, value in settings.items())
        self._measured.facts["PostgreSQL"] = f"{version} ({said})"


async def _first(workers: list[SystemProcess]) -> float:
    """When the first body of any of them began."""
    heard = [asyncio.create_task(worker.hear("first")) for worker in workers]
    finished, others = await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    moments: list[float] = [task.result()["first"] for task in finished]
    return min(moments)


async def _stamps(worker: SystemProcess, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
    """What the bodies of these numbers said, each the first time."""
    found: dict[int, dict[str, Any]] = {}
    while len(found) < len(numbers):
        said = await worker.hear("moment")
        if said["number"] in numbers:
            found.setdefault(said["number"], said)
    return found
