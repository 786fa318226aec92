"""The arithmetic of rates: how many tasks may start now, and when the next one may.

For each limit with a rate, and for each key queue of a kind with one, the store has one moment, `next_at`: when the
next start conforms to the rate without using the burst. An earlier start uses a part of the burst, a later one restores
it. A task may start while at least one unit of the burst is left, and then moves `next_at` by all of its units. So a
heavy task does not wait longer than a light one; the tasks after it do. All times are microseconds of the store's
clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from synergon.model.limits import NewRate

LAST_MOMENT: Final = 200_000_000_000_000_000
"""The latest moment that is stored. It is in the year 8307, which databases and Python can represent."""


def allowed(rate: NewRate, next_at: int | None, now: int) -> int:
    """How many tasks may start now."""
    ahead = max((next_at or now) - now, 0)
    return max((rate.per * rate.burst - ahead * rate.starts) // rate.per, 0)


def next_start(rate: NewRate, next_at: int | None, now: int) -> int:
    """The moment from which the next task may start."""
    return min(max((next_at or now) - rate.per * (rate.burst - 1) // rate.starts, now), LAST_MOMENT)


def after(rate: NewRate, next_at: int | None, now: int, starts: int) -> int:
    """The new value of `next_at` after this number of starts. Rounded up, so that no more tasks start than the rate
    permits."""
    return min(max(next_at or now, now) - rate.per * -starts // rate.starts, LAST_MOMENT)


@dataclass(slots=True)
class RateMeter:
    """The rate of a limit at one moment, while a claim charges it."""

    rate: NewRate
    next_at: int | None
    now: int

    @property
    def allowed(self) -> int:
        """How many tasks of one unit may start now."""
        return allowed(self.rate, self.next_at, self.now)

    @property
    def free_at(self) -> int:
        """The moment from which the next task may start."""
        return next_start(self.rate, self.next_at, self.now)

    def charge(self, units: int) -> None:
        """Charge a start of this many units. A negative number undoes the charge of a start."""
        number = units if self.rate.by_units else (1 if units > 0 else -1)
        self.next_at = after(self.rate, self.next_at, self.now, number)
