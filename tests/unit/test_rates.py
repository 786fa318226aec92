"""The arithmetic of rates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synergon.model.limits import NewRate
from synergon.stores.rules.rates import after, allowed, next_start

TEN_PER_SECOND = NewRate(per=100_000, burst=5)


def test_after_a_rest_the_burst_may_start_at_once_and_then_one_by_one() -> None:
    now = 1_000_000
    assert allowed(TEN_PER_SECOND, None, now) == 5
    next_at = after(TEN_PER_SECOND, None, now, 5)
    assert allowed(TEN_PER_SECOND, next_at, now) == 0
    assert next_start(TEN_PER_SECOND, next_at, now) == now + 100_000
    assert allowed(TEN_PER_SECOND, next_at, now + 99_999) == 0
    assert allowed(TEN_PER_SECOND, next_at, now + 100_000) == 1
    assert allowed(TEN_PER_SECOND, next_at, now + 10_000_000) == 5


def test_starts_that_come_late_do_not_slow_the_rate_down() -> None:
    now, next_at, starts = 0, None, 0
    while now < 10_000_000:
        count = allowed(TEN_PER_SECOND, next_at, now)
        next_at = after(TEN_PER_SECOND, next_at, now, count)
        starts += count
        now = next_start(TEN_PER_SECOND, next_at, now) + 7_000
    assert starts in (104, 105)


@given(st.integers(1, 10**7), st.integers(1, 50), st.lists(st.integers(0, 10**7), max_size=60), st.integers(0, 10**15))
def test_no_window_ever_has_more_than_the_burst_and_what_the_time_allows(
    every: int, burst: int, pauses: list[int], begin: int
) -> None:
    rate = NewRate(per=every, burst=burst)
    now, next_at, starts = begin, None, list[int]()
    for pause in pauses:
        now += pause
        count = allowed(rate, next_at, now)
        assert 0 <= count <= burst
        assert (count > 0) == (next_start(rate, next_at, now) <= now)
        next_at = after(rate, next_at, now, count) if count else next_at
        starts += [now] * count
    for first in range(0, len(starts), 7):
        for last in range(first, len(starts), 5):
            assert last - first + 1 <= burst + (starts[last] - starts[first]) / every + 1e-9
