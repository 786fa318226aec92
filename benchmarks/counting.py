"""What counting costs: the processor time of a drain with statistics and metrics, compared with one without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Final

from benchmarks.figures import Measured
from benchmarks.postgres.server import running_server
from benchmarks.sizes import Sizes
from synergon.cli.bench import Bench
from synergon.model.claims import Claim
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.node.metrics import Metrics

ROUNDS: Final = 21
"""How often each way is measured. They alternate, so that what else the machine does concerns both, and the median
leaves out the rounds that were disturbed."""


class NoMetrics(Metrics):
    """Counts nothing of what concerns single tasks."""

    def note_started(self, claims: Iterable[Claim]) -> None:
        """Count nothing."""

    def note_run(self, claim: Claim, seconds: float) -> None:
        """Count nothing."""

    def note_finished(self, outcomes: Iterable[FencedOutcome], verdicts: Iterable[Verdict]) -> None:
        """Count nothing."""


def sqlite(folder: Path, sizes: Sizes) -> Measured:
    """On a new SQLite file."""
    return asyncio.run(_measure("sqlite", f"sqlite:///{folder}/statistics.db", sizes.tasks // 10))


def postgres(folder: Path, sizes: Sizes) -> Measured:
    """On a PostgreSQL server."""
    with running_server(folder) as url:
        return asyncio.run(_measure("pg_synergon", url, sizes.postgres_tasks // 10))


async def _measure(subject: str, url: str, tasks: int) -> Measured:
    measured = Measured()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    async with Bench(url) as bench:
        for is_counting in [True, False] * (ROUNDS + 1):
            statistics = bench.engine._connection.statistics
            assert statistics is not None, "the engine is connected"
            statistics.metrics = Metrics() if is_counting else NoMetrics()
            await bench.enqueue_in_bulk(bench.on_loop, tasks)
            began = process_time()
            await bench.drain(bench.on_loop)
            seconds[is_counting].append(process_time() - began)
    # The first round of each is a warm-up.
    with_it, without = (median(seconds[is_counting][1:]) / tasks * 1e6 for is_counting in (True, False))
    measured.add(f"{subject}.drain_cpu_with_statistics", "µs", with_it)
    measured.add(f"{subject}.drain_cpu_without_statistics", "µs", without)
    pairs = zip(seconds[False][1:], seconds[True][1:], strict=True)
    measured.add(f"{subject}.statistics_to_without", "×", median(off / on for off, on in pairs))
    return measured
