"""Servers that end with the process that started them, even if that process is killed.

The watcher is a process of its own. It holds the read end of a pipe whose write end belongs to the process that starts
the server. At end of file, which the kernel delivers however that process ends, the watcher ends each process whose
command line names the folder of the server, and removes the folder. It uses nothing but the standard library and
psutil, because the benchmarks use it too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Final, cast

import psutil

PATIENCE_SECONDS: Final = 30.0
"""How long a server may take to end before it is killed."""


class Watcher:
    """Watches one folder from now on. Make it before the server, so that no moment is left in which a kill leaves a
    server behind. `close`, or the end of this process, ends the server and removes the folder."""

    def __init__(self, folder: Path) -> None:
        # A session of its own: a signal to the process group of the tests, such as Ctrl-C, does not end it.
        command = [sys.executable, __file__, str(folder.resolve())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        atexit.register(self.close)
        # A process that is forked off has a copy of the pipe, and may outlive this one.
        os.register_at_fork(after_in_child=cast("IO[bytes]", self._process.stdin).close)

    def close(self) -> None:
        """Return when the server has ended and its folder is gone."""
        atexit.unregister(self.close)
        cast("IO[bytes]", self._process.stdin).close()
        self._process.wait()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def processes_of(folder: Path) -> list[psutil.Process]:
    """The other processes whose command line names the folder."""
    return [
        process
        for process in psutil.process_iter(["pid", "cmdline"])
        if process.pid != psutil.Process().pid and any(str(folder) in word for word in process.info["cmdline"] or ())
    ]


def end(folder: Path) -> None:
    """End the server, then remove its folder."""
    while running := processes_of(folder):
        # PostgreSQL and PgBouncer end at once on SIGQUIT, without waiting for their clients.
        for number in (signal.SIGQUIT, signal.SIGKILL):
            for process in running:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            _, running = psutil.wait_procs(running, timeout=PATIENCE_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    end(Path(sys.argv[1]))
