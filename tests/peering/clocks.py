"""Clocks for signatures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StoppedClock:
    """Always tells the same time."""

    time: int

    def now(self) -> int:
        return self.time
