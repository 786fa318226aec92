"""The port to time and randomness. Node code uses a Clock and never the operating system, so that a simulator can
implement it."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol


class Clock(Protocol):
    """Time inside one process. Moments that are stored, or compared between processes, are those of the store's
    clock."""

    def monotonic(self) -> float:
        """Seconds of a clock that never runs back, for durations."""

    def wall(self) -> int:
        """Microseconds since 1970 by the host's clock, for stores whose clock is the host's."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""

    def chance(self) -> float:
        """A random number in [0, 1)."""


def new_id(clock: Clock) -> str:
    """A unique id."""
    return f"{int(clock.chance() * 2**48):012x}{int(clock.chance() * 2**48):012x}"


class SystemClock:
    """The clock of the operating system."""

    monotonic = staticmethod(time.monotonic)  # called most often: a method around it would cost more

    def wall(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await asyncio.sleep(seconds)

    def chance(self) -> float:
        """A random number in [0, 1)."""
        return random.random()
