"""synergon itself, on a store: tasks come in, run on the loop, in threads and in processes, and start on time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

from benchmarks.bodies import echo_in_process, echo_in_thread
from benchmarks.figures import Measured
from benchmarks.sizes import Sizes
from synergon import Engine, State
from synergon.cli.bench import Bench, Percentiles
from synergon.stores.sqlite import SqliteStore

LEAD_SECONDS: Final = 0.5
"""Between the enqueue of scheduled tasks and the first that is due."""

GAP_SECONDS: Final = 0.01
"""Between two scheduled tasks."""

SYNCED: Final = (["FULL", "[(2,)]"], ["on", "on"])
"""What `synchronous` answers on SQLite and on PostgreSQL when every commit is synced to the disk."""


def sqlite(folder: Path, sizes: Sizes) -> Measured:
    """On a new SQLite file."""
    return asyncio.run(_measure("sqlite", f"sqlite:///{folder}/bench.db", sizes))


def memory(_: Path, sizes: Sizes) -> Measured:
    """In memory."""
    return asyncio.run(_measure("memory", "memory://", sizes))


async def _measure(subject: str, url: str, sizes: Sizes) -> Measured:
    measured = Measured()
    async with Bench(url) as bench:
        await _enqueue_and_drain(bench, subject, sizes, measured)
        await _drain_elsewhere(bench, subject, sizes, measured)
        latencies = await bench.start_latencies(sizes.latency_samples)
        measured.add_percentiles(f"{subject}.idle_start", Percentiles.of(latencies))
        lateness = await _lateness(bench, sizes.scheduled_tasks)
        measured.add_percentiles(f"{subject}.scheduled_lateness", Percentiles.of(lateness))
        await _check(bench, subject, measured)
    return measured


async def _enqueue_and_drain(bench: Bench, subject: str, sizes: Sizes, measured: Measured) -> None:
    measured.add(f"{subject}.bulk_enqueue", "/s", await bench.enqueue_in_bulk(bench.on_loop, sizes.tasks))
    cpu_before = process_time()
    measured.add(f"{subject}.drain", "/s", await bench.drain(bench.on_loop))
    measured.add(f"{subject}.drain_cpu", "µs", (process_time() - cpu_before) / sizes.tasks * 1e6)
    rate, durations = await bench.enqueue_concurrently(bench.on_loop, sizes.tasks)
    measured.add(f"{subject}.awaited_enqueue", "/s", rate)
    measured.add_percentiles(f"{subject}.awaited_enqueue", durations)
    await bench.drain(bench.on_loop)


async def _drain_elsewhere(bench: Bench, subject: str, sizes: Sizes, measured: Measured) -> None:
    in_thread = bench.task("thread", echo_in_thread)
    await bench.enqueue_in_bulk(in_thread, sizes.thread_tasks)
    measured.add(f"{subject}.drain_in_threads", "/s", await bench.drain(in_thread))
    in_process = bench.task("process", echo_in_process.function, runs_in="process")
    await bench.enqueue_in_bulk(in_process, sizes.process_tasks)
    measured.add(f"{subject}.drain_in_processes", "/s", await bench.drain(in_process))


async def _lateness(bench: Bench, tasks: int) -> list[float]:
    """Seconds from the moment a task was due to the first line of its body."""
    wall, began = datetime.now(UTC), perf_counter()
    due = [LEAD_SECONDS + GAP_SECONDS * number for number in range(tasks)]
    async with bench.engine.worker():
        handles = await bench.engine.enqueue(
            bench.stamped.with_options(run_at=wall + timedelta(seconds=offset)).call(number)
            for number, offset in enumerate(due)
        )
        bench.ids.extend(handle.id for handle in handles)
        await asyncio.gather(*(handle.result() for handle in handles))
    return [bench.started_at[number] - began - offset for number, offset in enumerate(due)]


async def _check(bench: Bench, subject: str, measured: Measured) -> None:
    succeeded = await bench.count([State.SUCCEEDED])
    measured.check(f"{subject}: every task is in the history, succeeded", expected=len(bench.ids), found=succeeded)
    if bench.engine._store.capabilities.durable:
        found = await synchronous(bench.engine)
        measured.check(f"{subject}: every commit is synced", expected=True, found=found in SYNCED)


async def synchronous(engine: Engine) -> list[str]:
    """How the store commits. On SQLite: the reader's connection as the store tells it, and the writer's own word."""
    store = engine._store
    facts = await store.describe()
    if not isinstance(store, SqliteStore):
        return [facts["fsync"], facts["synchronous_commit"]]
    pragma = await store._write(lambda work: work.select("PRAGMA synchronous", ()))  # noqa: SLF001  nobody else can ask
    return [facts["synchronous"], str(pragma)]
