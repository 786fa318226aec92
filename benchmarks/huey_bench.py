"""Huey on SQLite, as its documentation sets it up: a consumer with several workers, in a process of its own.

Both kinds of workers that need no further library are measured, with what is in Huey's favour: its consumer logs
nothing, and its start does not count.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Final

from benchmarks import isolation
from benchmarks.figures import Measured, merge
from benchmarks.sizes import Sizes
from synergon.cli.bench import Percentiles

WORKERS: Final = {"thread": 4, "process": os.cpu_count() or 1}
LOOK_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 300.0
LONGEST_REST_SECONDS: Final = 0.2
"""Between two samples of latency; random, so that they meet the workers' polling at any phase."""

FILE_VARIABLE: Final = "BENCHMARK_HUEY_FILE"
"""Names the file to `huey_app`, here and in the consumer."""


def measure(folder: Path, sizes: Sizes) -> Measured:
    """Each kind of worker on a file and in processes of its own."""
    return merge(isolation.in_new_process(_measure, folder / f"{kind}.db", kind, sizes) for kind in WORKERS)


def _measure(file: Path, kind: str, sizes: Sizes) -> Measured:
    measured = Measured()
    os.environ[FILE_VARIABLE] = str(file)
    app = importlib.import_module("benchmarks.huey_app")  # makes the file, so it must know its name by now
    measured.add(f"huey.{kind}.bulk_enqueue", "/s", _enqueue(app, sizes.huey_tasks))
    with _consumer(kind):
        measured.add(f"huey.{kind}.drain", "/s", _drain(app, sizes.huey_tasks))
        _check(app, kind, sizes.huey_tasks, measured)
        latencies = _start_latencies(app, sizes.huey_latency_samples)
    measured.add_percentiles(f"huey.{kind}.idle_start", Percentiles.of(latencies))
    return measured


def _enqueue(app: Any, tasks: int) -> float:
    """Huey has no call for many tasks, so they come one by one."""
    began = perf_counter()
    for number in range(tasks):
        app.echo(number)
    return tasks / (perf_counter() - began)


@contextlib.contextmanager
def _consumer(kind: str) -> Iterator[None]:
    options = ["--worker-type", kind, "--workers", str(WORKERS[kind]), "--quiet"]
    command = [sys.executable, "-m", "huey.bin.huey_consumer", "benchmarks.huey_app.huey", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its workers are in the group; nothing it holds is wanted any more
        process.wait()


def _drain(app: Any, tasks: int) -> float:
    """Results per second, from the first sight of one until all are there."""
    seen = _wait_for_results(app, 1)
    began = perf_counter()
    _wait_for_results(app, tasks)
    return (tasks - seen) / (perf_counter() - began)


def _wait_for_results(app: Any, tasks: int) -> int:
    deadline = perf_counter() + PATIENCE_SECONDS
    while (seen := _results(app)) < tasks:
        if perf_counter() > deadline:
            raise TimeoutError(f"Huey has stored {seen} of {tasks} results after {PATIENCE_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
    return seen


def _results(app: Any) -> int:
    return int(app.huey.result_count())


def _check(app: Any, kind: str, tasks: int, measured: Measured) -> None:
    ((synchronous,),) = app.huey.storage.sql("PRAGMA synchronous", results=True)
    measured.check(f"huey, {kind} workers: PRAGMA synchronous", expected=2, found=synchronous)
    measured.check(f"huey, {kind} workers: every result is stored", expected=tasks, found=_results(app))


def _start_latencies(app: Any, samples: int) -> list[float]:
    latencies = []
    for _ in range(samples):
        time.sleep(random.uniform(0, LONGEST_REST_SECONDS))
        asked = monotonic()
        started = app.start_moment().get(blocking=True, timeout=PATIENCE_SECONDS)
        latencies.append(started - asked)
    return latencies
