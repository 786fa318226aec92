"""The interval of the sweep: how often a node looks for tasks that no hint has announced."""

from __future__ import annotations

import asyncio
from typing import Final

from synergon.model.clock import Clock

SHORTEST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0
GROWTH: Final = 3.0
WATCH_SECONDS: Final = 60.0
"""How long a node sweeps often because a caller's own transaction may insert tasks."""


class SweepInterval:
    """One second while there are tasks or hints may not arrive, and increasingly longer otherwise.

    An interval that the user has configured does not change.
    """

    def __init__(self, given_seconds: float | None, clock: Clock) -> None:
        self._given = given_seconds
        self._clock = clock
        self._seconds = SHORTEST_SECONDS
        self._watch_until = 0.0
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Return when the interval is over, or after `sweep_now`."""
        try:
            async with asyncio.timeout(self._given or self._seconds):
                await self._event.wait()
        except TimeoutError:
            return
        finally:  # not earlier: a `sweep_now` during a sweep is a reason for another one
            self._event.clear()

    def adapt(self, *, keep_short: bool) -> None:
        """Shorten or lengthen the interval after a sweep."""
        if keep_short or self._clock.monotonic() < self._watch_until:
            self._seconds = SHORTEST_SECONDS
        else:
            self._seconds = min(self._seconds * GROWTH, LONGEST_SECONDS)

    def sweep_now(self) -> None:
        """Sweep now."""
        self._event.set()

    def sweep_often(self) -> None:
        """Sweep often for a while, because tasks may come without a hint."""
        self._watch_until = self._clock.monotonic() + WATCH_SECONDS
        if self._seconds > SHORTEST_SECONDS:
            self._seconds = SHORTEST_SECONDS
            self._event.set()
