"""The bodies' own log: one line when a body starts and one when it ends, appended by whatever process runs it.

It knows nothing of the engine, so it can be held against what the database says.
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
FILE_NAME: Final = "bodies.log"


@contextmanager
def logged(ctx: Context) -> Iterator[None]:
    """Write that the body of this task starts, and then that it has ended, or was stopped by an error."""
    _write("start", ctx)
    try:
        yield
    except BaseException:
        _write("stop", ctx)
        raise
    _write("end", ctx)


def _write(word: str, ctx: Context) -> None:
    worker = os.environ["SYNERGON_NAME"]
    # One write to a file opened for appending: lines of several processes never mix.
    os.write(_file(), f"{word} {ctx.task_id} {ctx.claim_no} {ctx.kind} {worker} {time.time():.6f}\n".encode())


@cache
def _file() -> int:
    return os.open(Path(os.environ[FOLDER_VARIABLE]) / FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@dataclass(slots=True)
class Run:
    """One execution of a body."""

    task_id: int
    kind: str
    worker: str
    started_at: float
    ended_at: float | None = None
    is_stopped: bool = False
    """It ended with an error; what neither ended nor stopped was cut off."""

    @property
    def is_finished(self) -> bool:
        """Whether it came to its good end."""
        return self.ended_at is not None and not self.is_stopped


class RunLog:
    """What the bodies have written so far."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._offset = 0
        self._open: dict[tuple[str, str], Run] = {}
        self.runs: list[Run] = []
        self.by_task: dict[int, list[Run]] = {}

    def read(self) -> None:
        """Take in the lines that are new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(text) + len(newline)
        for line in text.decode().splitlines():
            self._take(*line.split())

    def _take(self, word: str, task_id: str, claim_no: str, kind: str, worker: str, moment: str) -> None:
        if word == "start":
            run = Run(int(task_id), kind, worker, float(moment))
            self._open[task_id, claim_no] = run
            self.runs.append(run)
            self.by_task.setdefault(run.task_id, []).append(run)
            return
        run = self._open.pop((task_id, claim_no))
        run.ended_at = float(moment)
        run.is_stopped = word == "stop"

    def running_on(self, worker: str) -> list[Run]:
        """The bodies that this worker has started and that have neither ended nor stopped."""
        return [run for run in self._open.values() if run.worker == worker]

    def finished(self, worker: str | None = None) -> list[float]:
        """When bodies have ended well, on one worker or on all."""
        return [
            run.ended_at
            for run in self.runs
            if run.ended_at is not None and not run.is_stopped and worker in (None, run.worker)
        ]
