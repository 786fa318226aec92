"""The tasks' own log: each task function appends a line when it starts and another when it ends.

The log does not depend on the engine, so it can be compared with the database.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from synergon.context import Context

FOLDER_VARIABLE: Final = "SYNERGON_DEMO_FOLDER"
FILE_NAME: Final = "tasks.log"


@contextmanager
def log_run(ctx: Context) -> Iterator[None]:
    """Log the start of the task function, and its end or error."""
    _write("start", ctx)
    try:
        yield
    except BaseException:
        _write("error", ctx)
        raise
    _write("end", ctx)


def _write(event: str, ctx: Context) -> None:
    worker = os.environ["SYNERGON_NAME"]
    # One write to a file opened for appending: lines of several processes never mix.
    os.write(_file(), f"{event} {ctx.task_id} {ctx.claim_no} {ctx.kind} {worker} {time.time():.6f}\n".encode())


@cache
def _file() -> int:
    return os.open(Path(os.environ[FOLDER_VARIABLE]) / FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@dataclass(slots=True)
class Run:
    """One execution of a task function."""

    task_id: int
    kind: str
    worker: str
    started_at: float
    ended_at: float | None = None
    """When the function ended. None if it still runs, or its process died."""
    has_error: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether the function ended without an error."""
        return self.ended_at is not None and not self.has_error


class TaskLog:
    """Reads the tasks' log."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._offset = 0
        self._open: dict[tuple[str, str], Run] = {}
        self.runs: list[Run] = []
        self.by_task: dict[int, list[Run]] = {}

    def read(self) -> None:
        """Read the lines that were added since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(text) + len(newline)
        for line in text.decode().splitlines():
            self._add(*line.split())

    def _add(self, event: str, task_id: str, claim_no: str, kind: str, worker: str, moment: str) -> None:
        if event == "start":
            run = Run(int(task_id), kind, worker, float(moment))
            self._open[task_id, claim_no] = run
            self.runs.append(run)
            self.by_task.setdefault(run.task_id, []).append(run)
            return
        run = self._open.pop((task_id, claim_no))
        run.ended_at = float(moment)
        run.has_error = event == "error"

    def running_on(self, worker: str) -> list[Run]:
        """The runs that this worker has started and that have not ended."""
        return [run for run in self._open.values() if run.worker == worker]

    def finished_at(self, worker: str | None = None) -> list[float]:
        """The end times of runs without an error, on one worker or on all."""
        return [
            run.ended_at
            for run in self.runs
            if run.ended_at is not None and not run.has_error and worker in (None, run.worker)
        ]
