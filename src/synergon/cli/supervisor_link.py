"""The line between a supervisor and one of its workers.

The worker says on it, once, that it has started. Whoever ends first is missed by the other: a supervisor that was
killed leaves no workers behind that nobody knows of.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

HAS_STARTED: Final = b"+"


class Lifeline:
    """The supervisor's end."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._has_started = False

    @property
    def has_started(self) -> bool:
        """Whether the worker has come so far that it runs tasks, or did before it ended."""
        if not self._has_started:
            with contextlib.suppress(OSError):  # nothing was said, or the line is closed
                self._has_started = self._end.recv(1) == HAS_STARTED
        return self._has_started


@contextmanager
def lifeline() -> Iterator[tuple[Lifeline, socket.socket]]:
    """Both ends. The worker's is to be closed here as soon as the worker has it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield Lifeline(ours), theirs


def hold(end: int) -> Callable[[], None]:
    """In the worker: stop in order when the supervisor is gone. Returns what tells it that the worker has started."""
    os.set_inheritable(end, False)

    def wait() -> None:
        with contextlib.suppress(ConnectionError):  # it ended without having heard everything
            os.read(end, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def tell() -> None:
        with contextlib.suppress(OSError):  # nobody is there to be told
            os.write(end, HAS_STARTED)

    threading.Thread(target=wait, name="synergon-supervisor-line", daemon=True).start()
    return tell
