"""Processes of Python programs that start at once, because a warm interpreter forks them."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Final, Literal

REPOSITORY: Final = Path(__file__).parents[1]

Way = Literal["module", "script", "import"]
"""A program is run as `python -m program`, as `python program`, or imported."""


class WarmProcess:
    """A Python program in a process of its own, which is used as a `subprocess.Popen` is.

    The environment is set after the interpreter has started: variables that the interpreter or the loader of the system
    read, such as PYTHONPATH and LD_PRELOAD, have no effect.
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        folder: Path,
        environment: Mapping[str, str],
        streams: tuple[int, int, int],
        way: Way = "module",
        flags: tuple[str, ...] = (),
        own_group: bool = False,
    ) -> None:
        request = {
            "program": program,
            "arguments": arguments,
            "folder": str(folder),
            "environment": dict(environment),
            "way": way,
            "own_group": own_group,
        }
        told, tell = os.pipe()
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(request).encode())
            file.seek(0)
            socket.send_fds(_interpreter(flags), [b"x"], [file.fileno(), *streams, tell])
        os.close(tell)
        self._told: IO[bytes] = os.fdopen(told, "rb", buffering=0)
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while the program runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once the program has ended; `subprocess.TimeoutExpired` after so many seconds."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = int(self._told.readline())
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


@cache
def _interpreter(flags: Sequence[str]) -> socket.socket:
    """The way to a warm interpreter, which ends with this process."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, *flags, str(REPOSITORY / "tests/warm_interpreter.py"), str(theirs.fileno())],
        env={name: value for name, value in os.environ.items() if not name.startswith("SYNERGON_")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    os.register_at_fork(after_in_child=ours.close)
    return ours
