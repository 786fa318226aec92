"""Deadlines of running bodies: one timer for each length of time, however many bodies have it.

Bodies with the same timeout pass their deadlines in the order in which they began, so a line for each timeout is all
the order there is to keep. A body that ends in time leaves its line at once; an empty line stays for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import takewhile
from typing import Final

from synergon.node.attempts.attempt import Attempt

SLACK: Final = 100
"""Empty lines that are not worth a look."""


class Deadlines:
    """Calls `on_passed` with every attempt that is still armed when its time is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_passed: Callable[[Attempt], None]) -> None:
        self._loop = loop
        self._on_passed = on_passed
        self._queues: dict[float | None, dict[Attempt, float]] = {}
        """By timeout; in each, when the time of whom is over. A dictionary is in the order in which they came."""
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._most_queues = SLACK

    def arm(self, attempt: Attempt) -> None:
        """Its time begins now; whatever it had before is void."""
        timeout = attempt.timeout
        if attempt.deadline is not None:
            self.disarm(attempt)
        if timeout is None:
            return
        moment = attempt.deadline = self._loop.time() + timeout
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._new_queue(timeout)
        queue[attempt] = moment
        if timeout not in self._timers:
            self._timers[timeout] = self._loop.call_at(moment, self._look, timeout)

    def disarm(self, attempt: Attempt) -> None:
        """It has ended in time."""
        if attempt.deadline is not None:
            attempt.deadline = None
            del self._queues[attempt.timeout][attempt]

    def _look(self, timeout: float) -> None:
        """The time of the first in this line may be over; it may also have ended long ago."""
        del self._timers[timeout]
        queue, now = self._queues[timeout], self._loop.time()
        passed = [attempt for attempt, _ in takewhile(lambda entry: entry[1] <= now, queue.items())]
        for attempt in passed:
            self.disarm(attempt)
        first = next(iter(queue.values()), None)
        if first is not None:
            self._timers[timeout] = self._loop.call_at(first, self._look, timeout)
        else:
            del self._queues[timeout]
        for attempt in passed:
            self._on_passed(attempt)

    def _new_queue(self, timeout: float) -> dict[Attempt, float]:
        if len(self._queues) >= self._most_queues:
            self._tidy()
        queue = self._queues[timeout] = {}
        return queue

    def _tidy(self) -> None:
        for timeout in [timeout for timeout, queue in self._queues.items() if not queue]:
            del self._queues[timeout]
            if timeout in self._timers:
                self._timers.pop(timeout).cancel()
        self._most_queues = 2 * len(self._queues) + SLACK
