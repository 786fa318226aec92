"""Deadlines of running bodies: one timer for each length of time, however many bodies have it.

Bodies with the same timeout pass their deadlines in the order in which they began, so a line for each timeout is all
the order there is to keep. Bodies that ended in time leave their entries behind; these never outnumber the others by
much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from synergon.node.attempt import Attempt

SLACK: Final = 1000
"""Entries of ended bodies that are not worth a look."""


class Deadlines:
    """Calls `on_passed` with every attempt that is still armed when its time is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_passed: Callable[[Attempt], None]) -> None:
        self._loop = loop
        self._on_passed = on_passed
        self._lines: dict[float, deque[tuple[float, Attempt]]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._armed = 0
        self._entries = 0

    def arm(self, attempt: Attempt) -> None:
        """Its time begins now; whatever it had before is void."""
        timeout = attempt.timeout
        if attempt.deadline is not None:
            self.disarm(attempt)
        if timeout is None:
            return
        moment = attempt.deadline = self._loop.time() + timeout
        line = self._lines.get(timeout)
        if line is None:
            line = self._lines[timeout] = deque()
        line.append((moment, attempt))
        self._armed += 1
        self._entries += 1
        if timeout not in self._timers:
            self._timers[timeout] = self._loop.call_at(moment, self._look, timeout)

    def disarm(self, attempt: Attempt) -> None:
        """It has ended in time."""
        if attempt.deadline is None:
            return
        attempt.deadline = None
        self._armed -= 1
        if self._entries > 2 * self._armed + SLACK:
            self._tidy()

    def _look(self, timeout: float) -> None:
        """The first in this line may have passed its deadline; it may also have ended long ago."""
        del self._timers[timeout]
        line, now = self._lines[timeout], self._loop.time()
        while line:
            moment, attempt = line[0]
            if attempt.deadline == moment and moment > now:
                self._timers[timeout] = self._loop.call_at(moment, self._look, timeout)
                return
            line.popleft()
            self._entries -= 1
            if attempt.deadline == moment:
                attempt.deadline = None
                self._armed -= 1
                self._on_passed(attempt)
        del self._lines[timeout]

    def _tidy(self) -> None:
        for timeout, line in list(self._lines.items()):
            kept = deque(entry for entry in line if entry[1].deadline == entry[0])
            if kept:
                self._lines[timeout] = kept
            else:
                del self._lines[timeout]
                self._timers.pop(timeout).cancel()
        self._entries = self._armed
