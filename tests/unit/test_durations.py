"""Durations, as people write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergon import OptionError
from synergon.options.durations import LONGEST_SECONDS, microseconds, seconds


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (0, 0.0),
        (1, 1.0),
        (0.25, 0.25),
        ("30", 30.0),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("250us", 0.00025),
        ("10m", 600.0),
        ("2h", 7200.0),
        ("7d", 604800.0),
        (" 5 s ", 5.0),
        (timedelta(minutes=1, milliseconds=1), 60.001),
    ],
)
def test_a_duration_means_what_it_says(written: Any, meant: float) -> None:
    assert seconds(written, "delay") == pytest.approx(meant, rel=1e-12)


@pytest.mark.parametrize(
    "written", ["", "ms", "5 minutes", "1h30m", "-1s", "1e3", "0x10", "١s5", "٣s", None, [], True, b"5s"]
)
def test_what_is_no_duration_is_refused_with_the_name_of_the_option(written: Any) -> None:
    with pytest.raises(OptionError, match=r"^delay must be"):
        seconds(written, "delay")


@given(st.integers(0, int(LONGEST_SECONDS) * 10))
def test_no_tenth_of_a_second_is_lost_on_the_way_to_the_store(tenths: int) -> None:
    assert microseconds(tenths / 10) == tenths * 100_000


@given(st.integers(0, 10**13))
def test_no_microsecond_is_lost_in_a_hundred_days(whole: int) -> None:
    assert microseconds(seconds(timedelta(microseconds=whole), "delay")) == whole


@given(st.floats() | st.integers() | st.text(max_size=20))
def test_whatever_is_given_the_answer_is_a_sane_number_or_a_clear_error(written: Any) -> None:
    try:
        found = seconds(written, "delay")
    except OptionError as refused:
        found, said = None, str(refused)
    assert said.startswith("delay must be") if found is None else 0 <= found <= LONGEST_SECONDS
