"""How long to wait before the next attempt: never negative, never huge, for any attempt number."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergon import OptionError, Retry
from synergon.options.durations import LONGEST_SECONDS
from synergon.options.options import make_placement
from synergon.options.overrides import Overrides

seconds = st.floats(min_value=0, max_value=LONGEST_SECONDS)
policies = st.builds(
    Retry,
    attempts=st.integers(1, 10_000),
    first=seconds,
    factor=st.floats(1, 1e9) | st.integers(1, 1000),
    cap=seconds,
    jitter=st.floats(0, 1),
)
chances = st.floats(0, 1, exclude_max=True)


@given(policies, st.integers(1, 10_000), chances)
def test_a_delay_lies_between_nothing_and_the_cap_with_its_jitter(policy: Retry, attempt: int, chance: float) -> None:
    delay = policy.delay(attempt, lambda: chance)
    assert 0 <= delay <= policy.cap * (1 + policy.jitter) * (1 + 1e-12)
    assert delay <= LONGEST_SECONDS


@settings(max_examples=25)
@given(policies)
def test_every_attempt_from_the_first_to_the_ten_thousandth_has_a_delay(policy: Retry) -> None:
    bound = min(policy.cap * (1 + policy.jitter) * (1 + 1e-12), LONGEST_SECONDS)
    generator = random.Random(0)
    for attempt in range(1, 10_001, 7):
        assert 0 <= policy.delay(attempt, generator.random) <= bound


@given(st.builds(Retry, first=seconds, factor=st.floats(1, 1e9), cap=seconds, jitter=st.just(0.0)))
def test_without_jitter_delays_only_grow(policy: Retry) -> None:
    delays = [policy.delay(attempt) for attempt in (*range(1, 50), 1000, 10_000, 10**9)]
    assert delays == sorted(delays)


def test_the_delays_of_the_default_are_what_the_documentation_says() -> None:
    middle: Callable[[], float] = lambda: 0.5  # noqa: E731
    assert [Retry().delay(attempt, middle) for attempt in (1, 2, 3, 4, 10, 11, 12, 41, 10_000)] == [
        1,
        2,
        4,
        8,
        512,
        600,
        600,
        600,
        600,
    ]


def test_jitter_spreads_to_both_sides() -> None:
    policy = Retry(first=10, factor=1, jitter=0.25)
    assert policy.delay(1, lambda: 0.0) == 7.5
    assert policy.delay(1, lambda: 1.0) == 12.5
    found = [policy.delay(1) for _ in range(200)]
    assert min(found) < 10 < max(found)
    assert all(7.5 <= delay <= 12.5 for delay in found)


@pytest.mark.parametrize("attempt", [10**6, 10**9, 10**18, 0, -5])
def test_any_attempt_number_has_an_answer_at_once(attempt: int) -> None:
    for factor in (2, 2.0, 1, 1000):
        assert 0 <= Retry(factor=factor).delay(attempt) <= 750


@pytest.mark.parametrize(
    ("given_wait", "clamped"),
    [
        (5, 5.0),
        (0.25, 0.25),
        (-1, 0.0),
        (float("-inf"), 0.0),
        (float("inf"), LONGEST_SECONDS),
        (1e300, LONGEST_SECONDS),
        (10**400, LONGEST_SECONDS),
        (float("nan"), 600.0),
    ],
)
def test_what_a_wait_function_says_is_clamped(given_wait: float, clamped: float) -> None:
    delay = Retry(wait=lambda attempt: given_wait).delay(1)
    assert delay == clamped
    assert isinstance(delay, float)


def test_a_wait_function_is_given_the_number_of_the_attempt() -> None:
    policy = Retry(wait=lambda attempt: attempt * 10)
    assert [policy.delay(attempt) for attempt in (1, 2, 3)] == [10, 20, 30]


@given(policies)
def test_a_policy_of_a_call_survives_the_store_exactly(policy: Retry) -> None:
    placement = make_placement({"retry": policy}, "a test")
    assert placement.overrides is not None
    stored = msgspec.json.decode(placement.overrides, type=Overrides)
    assert stored.retry == policy


@pytest.mark.parametrize("half", ["500ms", 0.5, "0.5", "0.5s"])
def test_durations_may_be_written_as_words(half: Any) -> None:
    policy = Retry(first=half, cap=half)
    assert (policy.first, policy.cap) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attempts": 0}, "Retry attempts must be a whole number from 1 "),
        ({"attempts": 1.5}, "Retry attempts must be a whole number from 1 .*, got 1.5"),
        ({"attempts": True}, "Retry attempts must be a whole number"),
        ({"attempts": 10**30}, "Retry attempts must be a whole number"),
        ({"first": -1}, "Retry first must be not negative, got -1"),
        ({"first": math.nan}, "Retry first must be not negative, got nan"),
        ({"first": math.inf}, "Retry first must be at most 100 years, got inf"),
        ({"cap": "soon"}, "Retry cap must be seconds or a duration"),
        ({"factor": 0.5}, "Retry factor must be a number from 1 "),
        ({"factor": math.nan}, "Retry factor must be a number from 1 "),
        ({"factor": math.inf}, "Retry factor must be a number from 1 "),
        ({"factor": 10**400}, "Retry factor must be a number from 1 "),
        ({"factor": "2"}, "Retry factor must be a number from 1 .*, got '2'"),
        ({"jitter": 1.5}, "Retry jitter must be a number between 0 and 1, got 1.5"),
        ({"jitter": math.nan}, "Retry jitter must be a number between 0 and 1"),
        ({"wait": 5}, "Retry wait must be a function of the attempt number, got 5"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Retry(**options)


def test_a_policy_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        Retry().attempts = 3  # type: ignore[misc]  # wrong on purpose


@pytest.mark.parametrize("attempt", ["x", None, 1.5, True])
def test_an_attempt_has_a_number(attempt: Any) -> None:
    for policy in (Retry(), Retry(wait=lambda attempt: attempt)):
        with pytest.raises(OptionError, match=f"takes the number of an attempt, got {attempt!r}"):
            policy.delay(attempt)
