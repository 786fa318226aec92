"""The demo's worker processes: started, killed, stopped, and never left behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from synergon.cli.demo_app import URL_VARIABLE
from synergon.cli.demo_log import FOLDER_VARIABLE
from synergon.errors import SynergonError

PROGRAM: Final = "from synergon.cli.demo_app import work; work()"
STOP_SECONDS: Final = 10.0


class WorkerProcess:
    """One of them, from its start until `end` has made sure that it is gone."""

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
                stdin=subprocess.PIPE,  # closed when this process ends, however it ends; the worker ends then too
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops its workers
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise if it has ended although nobody wanted that."""
        if self.killed_at is None and self._process.poll() is not None:
            last = self._log.read_text(errors="replace").strip()[-2000:]
            raise SynergonError(f"worker {self.name} ended with code {self._process.returncode}:\n{last}")

    def kill(self) -> float:
        """SIGKILL: no farewell, no clean-up. The moment at which it happened."""
        self.killed_at = time.time()
        self._process.kill()
        self._process.wait()
        return self.killed_at

    def stop(self) -> None:
        """Stop it in order, unless that takes too long."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)

    def end(self) -> None:
        """Make sure that it is gone."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
