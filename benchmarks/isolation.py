"""Measuring where nothing else disturbs: in a new process, in an empty folder, and nothing of either stays."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil

Result = TypeVar("Result")

SAMPLE_SECONDS: Final = 0.1
MEGABYTE: Final = 1_000_000


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """A folder on the disk of the current one: the system's own for temporary files may be in memory."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        yield Path(folder)


def in_new_process(function: Callable[..., Result], *arguments: Any) -> Result:
    """What `function` returns, or raises, in a Python of its own."""
    with _new_process() as pool:
        return pool.submit(function, *arguments).result()


def with_peak_memory(function: Callable[..., Result], *arguments: Any) -> tuple[Result, float]:
    """The same, and the most memory that process had resident meanwhile, in MB."""
    with _new_process() as pool:
        process = psutil.Process(pool.submit(os.getpid).result())
        future = pool.submit(function, *arguments)
        peak = max(_resident_megabytes(process, future))
        return future.result(), peak


def _new_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _resident_megabytes(process: psutil.Process, future: Future[Any]) -> Iterator[float]:
    while True:
        yield process.memory_info().rss / MEGABYTE
        if wait([future], timeout=SAMPLE_SECONDS).done:
            return
