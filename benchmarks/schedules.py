"""Schedules on one node: how late the task functions of their occurrences start."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from benchmarks.figures import Measured
from benchmarks.postgres.server import running_server
from benchmarks.sizes import Sizes
from synergon import Context, Engine
from synergon.cli.bench import Percentiles

SCHEDULES: Final = 10
INTERVAL_SECONDS: Final = 0.2
"""Each fires this often; the schedules are spread evenly over the interval."""


def sqlite(folder: Path, sizes: Sizes) -> Measured:
    """On a new SQLite file."""
    return asyncio.run(_measure("sqlite", f"sqlite:///{folder}/schedules.db", sizes.scheduled_tasks))


def postgres(folder: Path, sizes: Sizes) -> Measured:
    """On a PostgreSQL server."""
    with running_server(folder) as url:
        return asyncio.run(_measure("pg_synergon", url, sizes.scheduled_tasks))


async def _measure(subject: str, url: str, samples: int) -> Measured:
    """The clock of both stores is that of this host, so lateness is the difference of two of its readings."""
    measured = Measured()
    engine = Engine(url)
    lateness: list[float] = []
    occurrences: list[tuple[str, object]] = []
    is_over = asyncio.Event()

    @engine.task
    async def stamp(name: str, ctx: Context) -> None:
        assert ctx.scheduled_for is not None
        lateness.append(time.time() - ctx.scheduled_for.timestamp())
        occurrences.append((name, ctx.scheduled_for))
        if len(lateness) >= samples:
            is_over.set()

    async with engine, engine.worker():
        for number in range(SCHEDULES):
            name = f"schedule-{number}"
            call = engine.call(stamp.kind, name)
            await engine.schedules.create(name, call, every=INTERVAL_SECONDS, overlap="queue", missed="all")
            await asyncio.sleep(INTERVAL_SECONDS / SCHEDULES)
        await is_over.wait()
    measured.add_percentiles(f"{subject}.schedule_lateness", Percentiles.of(lateness))
    found = len(occurrences) - len(set(occurrences))
    measured.check(f"{subject}: no occurrence of a schedule ran twice", expected=0, found=found)
    return measured
