"""The application that Huey's consumer loads: SQLite in WAL mode, every commit synced, results stored."""

from __future__ import annotations

import os
from time import monotonic

from huey import SqliteHuey

from benchmarks.huey_bench import FILE_VARIABLE

huey = SqliteHuey(filename=os.environ[FILE_VARIABLE], fsync=True)


@huey.task()  # type: ignore[untyped-decorator]  # Huey has no types
def echo(number: int) -> int:
    return number


@huey.task()  # type: ignore[untyped-decorator]  # Huey has no types
def start_moment() -> float:
    return monotonic()  # the same clock in every process of a host
