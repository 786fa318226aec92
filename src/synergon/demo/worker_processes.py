"""The demo's worker processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from synergon.demo.app import URL_VARIABLE
from synergon.demo.task_log import FOLDER_VARIABLE
from synergon.errors import SynergonError

PROGRAM: Final = "from synergon.demo.app import run_worker; run_worker()"
STOP_SECONDS: Final = 10.0


class WorkerProcess:
    """A worker process. It is started at once, and has ended after `close`."""

    def __init__(self, name: str, url: str, folder: Path) -> None:
        self.name = name
        self.killed_at: float | None = None
        self._log = folder / f"{name}.log"
        settings = {URL_VARIABLE: url, FOLDER_VARIABLE: str(folder), "SYNERGON_NAME": name}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SYNERGON_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env={**inherited, **settings},
                stdin=subprocess.PIPE,  # closed when this process ends, however it ends; the worker then exits
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the demo only, which then stops its workers
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise SynergonError if the process has ended unexpectedly."""
        if self.killed_at is None and self._process.poll() is not None:
            last = self._log.read_text(errors="replace").strip()[-2000:]
            raise SynergonError(f"worker {self.name} ended with code {self._process.returncode}:\n{last}")

    def kill(self) -> float:
        """Send SIGKILL, so that the worker cannot clean up. Returns the time of the kill."""
        self.killed_at = time.time()
        self._process.kill()
        self._process.wait()
        return self.killed_at

    def stop(self) -> None:
        """Ask the process to stop, and wait up to STOP_SECONDS for it."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)

    def close(self) -> None:
        """Kill the process if it still runs, and wait for its end."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
