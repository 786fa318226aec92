"""The port to time and chance. Node code asks a Clock and never the operating system, so that a simulator can."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol


class Clock(Protocol):
    """Time inside one process. Moments that are stored or compared between processes are the store's business."""

    def monotonic(self) -> float:
        """Seconds that only grow; for durations."""

    def wall(self) -> int:
        """Microseconds since 1970, as the host believes; for stores whose clock is the host's."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""

    def chance(self) -> float:
        """A number in [0, 1)."""


def new_id(clock: Clock) -> str:
    """An id that nobody else has."""
    return f"{int(clock.chance() * 2**48):012x}{int(clock.chance() * 2**48):012x}"


class SystemClock:
    """The real one."""

    monotonic = staticmethod(time.monotonic)  # the hottest call: a method of our own around it would cost more

    def wall(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)

    def chance(self) -> float:
        """A number in [0, 1)."""
        return random.random()
