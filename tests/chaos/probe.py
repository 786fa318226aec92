"""A probe that asks the database on and on, as an outsider, and writes down how long it had to wait.

A database that gets no time from a busy machine is away like one that was stopped, and one that was stopped is away
until it answers. The auditor must know both.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Final

import psycopg
from tests.chaos.evidence import Outage

PAUSE_SECONDS: Final = 0.1
WAIT_SECONDS: Final = 0.4
"""A longer wait is an outage."""
END_SECONDS: Final = 5.0


class Probe:
    """Asks from its start to `end`, in a thread of its own."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self.outages: list[Outage] = []
        self._ask = ask
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._is_over.wait(PAUSE_SECONDS):
            try:
                self._ask()
            except (psycopg.Error, sqlite3.Error):
                continue
            now = time.monotonic()
            if now - began > WAIT_SECONDS + PAUSE_SECONDS:
                self.outages.append(Outage(began, now))
            began = now

    def end(self) -> None:
        """Ask no more. A question to a server that is silent is left unanswered."""
        self._is_over.set()
        self._thread.join(END_SECONDS)
