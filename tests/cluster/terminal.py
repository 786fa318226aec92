"""A command on a real terminal: what it writes, the keys it gets, and how it leaves the terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.cli_support import COMMAND, Shell, until
from tests.support import PATIENCE_SECONDS

ENTERED = "\x1b[?1049h"
LEFT = "\x1b[?1049l"
"""What a program writes to go to the second screen of a terminal, and to go back."""


class Terminal:
    """A terminal, and the command on it."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int, theirs: int) -> None:
        self.process = process
        self._ours, self._theirs = ours, theirs
        self._written = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while written := os.read(self._ours, 65536):
                self._written += written

    @property
    def text(self) -> str:
        """Everything that was written so far, without colours."""
        return re.sub(r"\x1b\[[\d;]*m", "", self._written.decode(errors="replace"))

    @property
    def settings(self) -> list[Any]:
        """How the terminal treats keys: echo, lines, signals."""
        return termios.tcgetattr(self._theirs)

    def until_shows(self, pattern: str, *, after: int = 0) -> int:
        """Wait until this is written after a position; return the position behind it."""
        found: list[re.Match[str]] = []

        def is_shown() -> bool:
            found[:] = list(re.compile(pattern).finditer(self.text, after))[:1]
            return bool(found)

        try:
            until(is_shown)
        except TimeoutError:
            raise AssertionError(f"{pattern!r} was not written in {self.text[after:][-3000:]!r}") from None
        return found[0].end()

    def press(self, keys: str) -> int:
        """Send keys; return the position after what was written before."""
        position = len(self.text)
        os.write(self._ours, keys.encode())
        return position

    def resize(self, columns: int, rows: int) -> int:
        """Change the size; return the position after what was written before."""
        position = len(self.text)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)
        return position

    def ended(self) -> int:
        """The exit code, once the command has ended."""
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def on_terminal(shell: Shell, *arguments: str, columns: int = 80, rows: int = 24) -> Iterator[Terminal]:
    """Give a command on a new terminal; killed at the end if it still runs."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {name: value for name, value in shell.environment.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=shell.folder,
        env=environment | {"TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        yield Terminal(process, ours, theirs)
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)
