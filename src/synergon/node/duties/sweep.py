"""The interval of the sweep: how often a node looks for tasks that were not announced."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from synergon.model.clock import Clock

SHORTEST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0
SweepMode = Literal["fixed", "often", "seldom"]
GROWTH: Final = 3.0
WATCH_SECONDS: Final = 60.0
"""For how many seconds a node sweeps often after a caller's own transaction has used this engine."""


class SweepInterval:
    """The interval between two sweeps: one second while there are tasks or hints may not arrive; otherwise it grows
    after each sweep.

    An interval that the user has configured does not change.
    """

    def __init__(self, given_seconds: float | None, clock: Clock) -> None:
        self._given = given_seconds
        self._clock = clock
        self._seconds = SHORTEST_SECONDS
        self._watch_until = 0.0
        self._event = asyncio.Event()

    @property
    def seconds(self) -> float:
        """The current interval."""
        return self._given or self._seconds

    @property
    def mode(self) -> SweepMode:
        """`fixed` if the user has configured the interval, `often` while there are tasks or hints may not arrive,
        otherwise `seldom`."""
        if self._given:
            return "fixed"
        return "often" if self._seconds <= SHORTEST_SECONDS else "seldom"

    async def wait(self) -> None:
        """Wait until the interval is over, or until `sweep_now` is called."""
        try:
            async with asyncio.timeout(self.seconds):
                await self._event.wait()
        except TimeoutError:
            return
        finally:  # not earlier: a `sweep_now` during a sweep is a reason for another one
            self._event.clear()

    def adapt(self, *, keep_short: bool) -> None:
        """Set the interval after a sweep: the shortest if `keep_short`, otherwise a longer one."""
        if keep_short or self._clock.monotonic() < self._watch_until:
            self._seconds = SHORTEST_SECONDS
        else:
            self._seconds = min(self._seconds * GROWTH, LONGEST_SECONDS)

    def sweep_now(self) -> None:
        """End the interval: the next sweep starts now."""
        self._event.set()

    def sweep_often(self) -> None:
        """Sweep often for WATCH_SECONDS, because tasks may come without a hint."""
        self._watch_until = self._clock.monotonic() + WATCH_SECONDS
        if self._seconds > SHORTEST_SECONDS:
            self._seconds = SHORTEST_SECONDS
            self._event.set()
