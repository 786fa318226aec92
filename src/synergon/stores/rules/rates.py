"""The arithmetic of rates: how many tasks may start now, and when the next one may.

For each key queue, the store has one moment, `next_at`: when the next start is on time, without a burst. An earlier
start uses a part of the burst, a later one restores it. All times are microseconds of the store's clock.
"""

from __future__ import annotations

from typing import Final

from synergon.model.limits import NewRate

LAST_MOMENT: Final = 200_000_000_000_000_000
"""The latest moment that is stored. It is in the year 8307, which databases and Python can represent."""


def allowed(rate: NewRate, next_at: int | None, now: int) -> int:
    """How many tasks may start now."""
    ahead = max((next_at or now) - now, 0)
    return max((rate.every * rate.burst - ahead) // rate.every, 0)


def next_start(rate: NewRate, next_at: int | None, now: int) -> int:
    """The moment from which the next task may start."""
    return min(max((next_at or now) - rate.every * (rate.burst - 1), now), LAST_MOMENT)


def after(rate: NewRate, next_at: int | None, now: int, starts: int) -> int:
    """The new value of `next_at` after this number of starts."""
    return max(next_at or now, now) + rate.every * starts
