"""How many may start now, and when the next one may: the arithmetic of rates, the same in every store.

A rate has one moment to remember, `next_at`: when the next start would be on time if there were no burst. A start that
comes earlier borrows from the burst, one that comes later pays back. All times are microseconds of the store's clock.
"""

from __future__ import annotations

from typing import Final

from synergon.model.limits import NewRate

LAST_MOMENT: Final = 200_000_000_000_000_000
"""A date that databases and Python can write, after which nothing is expected to happen."""


def allowed(rate: NewRate, next_at: int | None, now: int) -> int:
    """How many may start at once."""
    ahead = max((next_at or now) - now, 0)
    return max((rate.every * rate.burst - ahead) // rate.every, 0)


def next_start(rate: NewRate, next_at: int | None, now: int) -> int:
    """The moment from which one may start."""
    return min(max((next_at or now) - rate.every * (rate.burst - 1), now), LAST_MOMENT)


def after(rate: NewRate, next_at: int | None, now: int, starts: int) -> int:
    """What to remember once so many have started."""
    return max(next_at or now, now) + rate.every * starts
