"""The socket between a supervisor and one of its worker processes.

The worker sends one byte when it has started. Each side notices the end of the other by the closed socket. If a
supervisor is killed, its workers stop.
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


class WorkerLink:
    """The supervisor's end of the socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._has_started = False

    @property
    def has_started(self) -> bool:
        """Whether the worker has reported that it runs tasks. Remains True after the end of the worker."""
        if not self._has_started:
            with contextlib.suppress(OSError):  # nothing received yet, or the socket is closed
                self._has_started = self._end.recv(1) == HAS_STARTED
        return self._has_started


@contextmanager
def open_link() -> Iterator[tuple[WorkerLink, socket.socket]]:
    """Open both ends of a socket. The supervisor must close the worker's end as soon as the worker has inherited it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield WorkerLink(ours), theirs


def connect_to_supervisor(fd: int) -> Callable[[], None]:
    """Called in the worker. Makes it stop gracefully when the supervisor ends. Returns the function that reports the
    start."""
    os.set_inheritable(fd, False)

    def wait() -> None:
        with contextlib.suppress(ConnectionError):  # the supervisor ended with unread data
            os.read(fd, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def report_start() -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone
            os.write(fd, HAS_STARTED)

    threading.Thread(target=wait, name="synergon-supervisor", daemon=True).start()
    return report_start
