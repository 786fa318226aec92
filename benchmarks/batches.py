"""Items in batches of 100, beside the same items one by one: with functions of 5 ms, and with ones that do nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Final

from benchmarks.figures import Measured
from benchmarks.postgres.server import running_server
from benchmarks.sizes import Sizes
from synergon import Batch, Engine
from synergon.cli.bench import CHUNK, CONCURRENCY

SIZE: Final = 100
FUNCTION_SECONDS: Final = 0.005
ONE_BY_ONE: Final = 50
"""One by one, only this part of the items is run with functions of 5 ms: the rest would take no other time each."""


def sqlite(folder: Path, sizes: Sizes) -> Measured:
    """On a new SQLite file."""
    return asyncio.run(_measure("sqlite", f"sqlite:///{folder}/batches.db", sizes.batch_items))


def postgres(folder: Path, sizes: Sizes) -> Measured:
    """On a PostgreSQL server."""
    with running_server(folder) as url:
        return asyncio.run(_measure("pg_synergon", url, sizes.batch_items))


async def _measure(subject: str, url: str, items: int) -> Measured:
    """Functions of 5 ms run one at a time, batched or not: the node has one slot for them. Functions that do nothing
    have all slots."""
    measured = Measured()
    for name, seconds, concurrency in (("5ms", FUNCTION_SECONDS, 1), ("no_op", 0.0, CONCURRENCY)):
        few = items // ONE_BY_ONE if seconds else items
        alone = await _drain(url, few, concurrency, seconds, None, measured)
        batched = await _drain(url, items, concurrency, seconds, Batch(size=SIZE, wait=1), measured)
        measured.add(f"{subject}.items_one_by_one_{name}", "/s", alone)
        measured.add(f"{subject}.items_in_batches_{name}", "/s", batched)
        measured.add(f"{subject}.batches_to_one_by_one_{name}", "×", batched / alone)
    return measured


async def _drain(
    url: str, items: int, concurrency: int, seconds: float, batch: Batch | None, measured: Measured
) -> float:
    """Items per second from the start of the worker to the end of the last function."""
    engine = Engine(url, concurrency=concurrency)
    ran: Counter[int] = Counter()
    is_over = asyncio.Event()

    async def run(numbers: list[int]) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        ran.update(numbers)
        if ran.total() >= items:
            is_over.set()

    async def run_one(number: int) -> None:
        await run([number])

    task = engine.task(name="alone")(run_one) if batch is None else engine.task(name="batched", batch=batch)(run)
    async with engine:
        for start in range(0, items, CHUNK):
            await task.enqueue_many([(number,) for number in range(start, min(start + CHUNK, items))])
        began = perf_counter()
        async with engine.worker():
            await is_over.wait()
            taken = perf_counter() - began
    measured.check(f"{task.kind}: every item ran once", expected=items, found=sum(n == 1 for n in ran.values()))
    return items / taken
