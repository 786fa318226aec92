"""Flows on one node: a thousand of twenty steps, each of which gets the result of the one before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from benchmarks.figures import Measured
from benchmarks.postgres.server import running_server
from benchmarks.sizes import Sizes
from synergon import State
from synergon.cli.bench import Bench

STEPS: Final = 20
AT_ONCE: Final = 50
"""How many flows are enqueued at once."""


def sqlite(folder: Path, sizes: Sizes) -> Measured:
    """On a new SQLite file."""
    return asyncio.run(_measure("sqlite", f"sqlite:///{folder}/flows.db", sizes))


def postgres(folder: Path, sizes: Sizes) -> Measured:
    """On a PostgreSQL server."""
    with running_server(folder) as url:
        return asyncio.run(_measure("pg_synergon", url, sizes))


async def _measure(subject: str, url: str, sizes: Sizes) -> Measured:
    measured = Measured()
    async with Bench(url) as bench:
        await bench.enqueue_in_bulk(bench.on_loop, sizes.flows * STEPS)
        plain = await bench.drain(bench.on_loop)
        for start in range(0, sizes.flows, AT_ONCE):
            await asyncio.gather(
                *(_enqueue(bench, number) for number in range(start, min(start + AT_ONCE, sizes.flows)))
            )
        drained = await bench.drain(bench.on_loop)
        measured.add(f"{subject}.flows.drain", "/s", drained)
        measured.add(f"{subject}.flows_to_plain", "×", drained / plain)
        succeeded = await bench.count([State.SUCCEEDED])
        expected = 2 * sizes.flows * STEPS
        measured.check(f"{subject}: every step of every flow succeeded", expected=expected, found=succeeded)
    return measured


async def _enqueue(bench: Bench, number: int) -> None:
    flow = bench.engine.flow(f"flow {number}")
    step = flow.add(bench.on_loop.call(number))
    for _ in range(STEPS - 1):
        step = flow.add(bench.on_loop.call(step.result))
    bench.ids.append((await flow.enqueue()).last.id)  # the drain waits for the last one, and counts afterwards
