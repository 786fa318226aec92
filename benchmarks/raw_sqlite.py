"""The ceiling: the claim and the move to the history as bare `sqlite3` loops, with nothing around them.

And what the disk under it takes for one sync, which all the figures of durable stores hang on.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from time import perf_counter
from typing import Final

from benchmarks.figures import Measured
from benchmarks.sizes import Sizes
from synergon.cli.bench import Percentiles

BATCHES: Final = {"one_by_one": 1, "in_hundreds": 100, "in_thousands": 1000}

PAGE: Final = bytes(4096)

SCHEMA: Final = """
    CREATE TABLE task (id INTEGER PRIMARY KEY, kind TEXT, priority INTEGER, state TEXT, payload BLOB, claim_no INTEGER);
    CREATE INDEX task_ready ON task (kind, priority DESC, id) WHERE state = 'ready';
    CREATE TABLE history (id INTEGER PRIMARY KEY, kind TEXT, priority INTEGER, payload BLOB, result BLOB);
"""
FIRST: Final = "SELECT id FROM task WHERE state = 'ready' AND kind = 'echo' ORDER BY priority DESC, id LIMIT ?"
CLAIM: Final = "UPDATE task SET state = 'running', claim_no = claim_no + 1 WHERE id = ? AND state = 'ready'"
END: Final = "INSERT INTO history SELECT id, kind, priority, payload, '1' FROM task WHERE id = ? AND state = 'running'"
FORGET: Final = "DELETE FROM task WHERE id = ?"


def measure(folder: Path, sizes: Sizes) -> Measured:
    """Claim and finish in batches of several sizes, each in a new file."""
    measured = Measured()
    measured.add_percentiles("raw.sync", Percentiles.of(_syncs(folder / "synced", sizes.latency_samples)))
    for name, batch in BATCHES.items():
        tasks = sizes.raw_single_tasks if batch == 1 else sizes.raw_tasks
        connection = _filled(folder / f"{name}.db", tasks)
        measured.add(f"raw.{name}", "/s", _claim_and_finish(connection, tasks, batch))
        (ended,) = connection.execute("SELECT count(*) FROM history").fetchone()
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
        measured.check(f"raw {name}: every task is in the history", expected=tasks, found=ended)
        measured.check(f"raw {name}: PRAGMA synchronous", expected=2, found=synchronous)
        connection.close()
    return measured


def _syncs(path: Path, samples: int) -> list[float]:
    durations = []
    with path.open("wb", buffering=0) as file:
        for _ in range(samples):
            file.write(PAGE)
            began = perf_counter()
            os.fdatasync(file.fileno())
            durations.append(perf_counter() - began)
    return durations


def _filled(path: Path, tasks: int) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(SCHEMA)
    connection.execute("BEGIN")
    rows = (("echo", 0, "ready", b'{"number":1}', 0) for _ in range(tasks))
    connection.executemany("INSERT INTO task VALUES (NULL, ?, ?, ?, ?, ?)", rows)
    connection.execute("COMMIT")
    return connection


def _claim_and_finish(connection: sqlite3.Connection, tasks: int, batch: int) -> float:
    began = perf_counter()
    for _ in range(0, tasks, batch):
        connection.execute("BEGIN IMMEDIATE")
        ids = connection.execute(FIRST, (batch,)).fetchall()
        connection.executemany(CLAIM, ids)
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(END, ids)
        connection.executemany(FORGET, ids)
        connection.execute("COMMIT")
    return tasks / (perf_counter() - began)
