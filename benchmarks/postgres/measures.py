"""One system on PostgreSQL: tasks come in, one node and then two work them off, an idle node is told of a task by
another process, and tasks start when they are due."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import asyncpg

from benchmarks.figures import Measured
from benchmarks.postgres.processes import PATIENCE_SECONDS, SystemProcess, done, started
from benchmarks.postgres.server import DURABLE, SETTINGS, running_server
from benchmarks.postgres.systems import SYSTEMS, System
from benchmarks.sizes import Sizes
from synergon.cli.bench import Percentiles

NODES: Final = (1, 2)
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
    return asyncio.run(Turn(SYSTEMS["synergon"], f"sqlite:///{folder}/hints.db", sizes, name="hints").told_by_another())


def _measure(name: str, folder: Path, sizes: Sizes) -> Measured:
    system = SYSTEMS[name]
    version = system.version()
    if version is None:
        return Measured(facts={name: "not installed, not measured"})
    with running_server(folder) as url:
        measured = asyncio.run(Turn(system, url, sizes).run())
    measured.facts[name] = version
    return measured


class Turn:
    """One turn of a system, on a server of its own."""

    def __init__(self, system: System, url: str, sizes: Sizes, *, name: str = "") -> None:
        self._system = system
        self._subject = name or f"pg_{system.name}"
        self._url = url
        self._sizes = sizes
        self._enqueued = 0
        self._measured = Measured()

    async def run(self) -> Measured:
        """Everything, in the order in which it makes sense."""
        async with started(self._system, self._url, "set_up") as process:
            await process.ended()
        for nodes in NODES:
            await self._fill_and_drain(nodes)
        async with started(self._system, self._url, "work") as worker:
            await self._latencies(worker)
            await self._lateness(worker)
            if self._system.succeeded is not None:
                await self._drained()
        await self._check()
        return self._measured

    async def told_by_another(self) -> Measured:
        """Only how soon an idle node begins what another process has enqueued."""
        async with started(self._system, self._url, "work") as worker:
            await self._latencies(worker)
        return self._measured

    def _name(self, figure: str) -> str:
        return f"{self._subject}.{figure}"

    async def _fill_and_drain(self, nodes: int) -> None:
        tasks = self._sizes.slow_tasks if self._system.is_slow else self._sizes.postgres_tasks
        filled = await done(self._system, self._url, "fill", tasks)
        self._measured.add(self._name("bulk_enqueue"), "/s", tasks / filled["seconds"])
        self._enqueued += tasks
        async with contextlib.AsyncExitStack() as stack:
            workers = [await stack.enter_async_context(started(self._system, self._url, "work")) for _ in range(nodes)]
            ended = asyncio.create_task(self._drained())
            began = await _first(workers)
            self._measured.add(
                self._name(f"drain_with_{nodes}_node{'s' * (nodes > 1)}"), "/s", tasks / (await ended - began)
            )

    async def _drained(self) -> float:
        """The moment at which nothing is left, seen from outside."""
        connection = await asyncpg.connect(self._url)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await connection.fetchval(self._system.is_drained, self._enqueued):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_SECONDS)
            return time.monotonic()
        finally:
            await connection.close()

    async def _latencies(self, worker: SystemProcess) -> None:
        """From the call in one process to the first line of the body in another, one at a time."""
        latencies = []
        async with started(self._system, self._url, "produce") as producer:
            await producer.hear()
            for number in range(WARM_UP + self._sizes.postgres_latency_samples):
                await asyncio.sleep(random.uniform(0, LONGEST_REST_SECONDS))
                await producer.say(number)
                began = (await worker.hear())["moment"]
                latencies.append(began - (await producer.hear())["asked"])
        self._enqueued += len(latencies)
        self._measured.add_percentiles(self._name("idle_start"), Percentiles.of(latencies[WARM_UP:]))

    async def _lateness(self, worker: SystemProcess) -> None:
        """From the due moment to the first line of the body."""
        tasks = self._sizes.scheduled_tasks
        due = (await done(self._system, self._url, "schedule", tasks))["due"]
        self._enqueued += tasks
        said = [await worker.hear() for _ in range(tasks)]
        lateness = [each["wall"] - due[each["number"]] for each in said]
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
    heard = [asyncio.create_task(worker.hear()) for worker in workers]
    finished, others = await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    moments: list[float] = [task.result()["first"] for task in finished]
    return min(moments)
