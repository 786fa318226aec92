"""Occurrences of schedules: the grid of an interval, cron expressions, and the days on which clocks are changed."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergon.errors import OptionError
from synergon.model.record import from_datetime, to_datetime
from synergon.model.schedules import NewSchedule
from synergon.model.tasks import NewTask
from synergon.options.timetable import ALIASES, CHUNK, Timetable, check_cron, check_timetable

SECOND = 1_000_000
NOW = from_datetime(datetime(2026, 1, 15, 12, 0, 30, tzinfo=UTC))


def timetable(anchor: int = NOW, **options: Any) -> Timetable:
    return Timetable(NewSchedule(name="report", task=NewTask(kind="work"), **options), anchor)


def utc(text: str) -> int:
    return from_datetime(datetime.fromisoformat(text).replace(tzinfo=UTC))


def after(found: Timetable, moment: int, number: int) -> list[str]:
    return [f"{to_datetime(at):%Y-%m-%d %H:%M}" for at in itertools.islice(found.upcoming(moment), number)]


# ---------------------------------------------------------------- the days that matter

DAILY = [
    # Berlin: on 29 March 02:00 is 03:00, on 25 October 03:00 is 02:00.
    ("Europe/Berlin", "30 2 * * *", ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"]),
    ("Europe/Berlin", "0 2 * * *", ["2026-03-28 01:00", "2026-03-29 01:00", "2026-03-30 00:00"]),
    ("Europe/Berlin", "0 3 * * *", ["2026-03-28 02:00", "2026-03-29 01:00", "2026-03-30 01:00"]),
    ("Europe/Berlin", "0,30 2 * * *", ["2026-03-28 01:00", "2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:00"]),
    ("Europe/Berlin", "30 2,3 * * *", ["2026-03-28 02:30", "2026-03-29 01:00", "2026-03-29 01:30", "2026-03-30 00:30"]),
    ("Europe/Berlin", "30 2 * * *", ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]),
    ("Europe/Berlin", "0 3 * * *", ["2026-10-24 01:00", "2026-10-25 02:00", "2026-10-26 02:00"]),
    ("Europe/Berlin", "30 2 * * *", ["2027-03-27 01:30", "2027-03-28 01:00", "2027-03-29 00:30"]),
    ("Europe/Berlin", "30 2 * * *", ["2027-10-30 00:30", "2027-10-31 00:30", "2027-11-01 01:30"]),
    ("Europe/Berlin", "30 2 * * sun", ["2026-03-22 01:30", "2026-03-29 01:00", "2026-04-05 00:30"]),
    # New York: on 8 March 02:00 is 03:00, on 1 November 02:00 is 01:00.
    ("America/New_York", "30 2 * * *", ["2026-03-07 07:30", "2026-03-08 07:00", "2026-03-09 06:30"]),
    ("America/New_York", "30 1 * * *", ["2026-10-31 05:30", "2026-11-01 05:30", "2026-11-02 06:30"]),
    ("America/New_York", "0 2 * * *", ["2026-10-31 06:00", "2026-11-01 07:00", "2026-11-02 07:00"]),
    ("America/New_York", "30 2 * * *", ["2027-03-13 07:30", "2027-03-14 07:00", "2027-03-15 06:30"]),
    ("America/New_York", "30 1 * * *", ["2027-11-06 05:30", "2027-11-07 05:30", "2027-11-08 06:30"]),
    # Lord Howe moves by half an hour: on 5 April 02:00 is 01:30, on 4 October 02:00 is 02:30.
    ("Australia/Lord_Howe", "45 1 * * *", ["2026-04-03 14:45", "2026-04-04 14:45", "2026-04-05 15:15"]),
    ("Australia/Lord_Howe", "0 2 * * *", ["2026-04-03 15:00", "2026-04-04 15:30", "2026-04-05 15:30"]),
    ("Australia/Lord_Howe", "15 2 * * *", ["2026-10-02 15:45", "2026-10-03 15:30", "2026-10-04 15:15"]),
    ("Australia/Lord_Howe", "30 2 * * *", ["2026-10-02 16:00", "2026-10-03 15:30", "2026-10-04 15:30"]),
    ("Australia/Lord_Howe", "45 1 * * *", ["2027-04-02 14:45", "2027-04-03 14:45", "2027-04-04 15:15"]),
    ("Australia/Lord_Howe", "15 2 * * *", ["2027-10-01 15:45", "2027-10-02 15:30", "2027-10-03 15:15"]),
    # Chatham is at 12:45 and 13:45: on 5 April 03:45 is 02:45, on 27 September 02:45 is 03:45.
    ("Pacific/Chatham", "0 3 * * *", ["2026-04-03 13:15", "2026-04-04 13:15", "2026-04-05 14:15"]),
    ("Pacific/Chatham", "50 3 * * *", ["2026-04-03 14:05", "2026-04-04 15:05", "2026-04-05 15:05"]),
    ("Pacific/Chatham", "0 3 * * *", ["2026-09-25 14:15", "2026-09-26 14:00", "2026-09-27 13:15"]),
    ("Pacific/Chatham", "30 2 * * *", ["2026-09-25 13:45", "2026-09-26 13:45", "2026-09-27 12:45"]),
    ("Pacific/Chatham", "0 3 * * *", ["2027-04-02 13:15", "2027-04-03 13:15", "2027-04-04 14:15"]),
    ("Pacific/Chatham", "0 3 * * *", ["2027-09-24 14:15", "2027-09-25 14:00", "2027-09-26 13:15"]),
]
"""Fixed times around the changes of clocks, in UTC."""

ELAPSED = [
    ("Europe/Berlin", "*/30 * * * *", ["2026-03-29 00:30", "2026-03-29 01:00", "2026-03-29 01:30", "2026-03-29 02:00"]),
    ("Europe/Berlin", "0 * * * *", ["2026-10-24 23:00", "2026-10-25 00:00", "2026-10-25 01:00", "2026-10-25 02:00"]),
    ("Europe/Berlin", "*/30 2 * * *", ["2026-03-28 01:30", "2026-03-30 00:00", "2026-03-30 00:30"]),
    ("Europe/Berlin", "*/30 2 * * *", ["2026-10-25 00:00", "2026-10-25 00:30", "2026-10-25 01:00", "2026-10-25 01:30"]),
    ("America/New_York", "15 * * * *", ["2026-03-08 06:15", "2026-03-08 07:15", "2026-03-08 08:15"]),
    (
        "America/New_York",
        "15 * * * *",
        ["2026-11-01 04:15", "2026-11-01 05:15", "2026-11-01 06:15", "2026-11-01 07:15"],
    ),
    ("Australia/Lord_Howe", "0,30 * * * *", ["2026-04-04 14:30", "2026-04-04 15:00", "2026-04-04 15:30"]),
    ("Australia/Lord_Howe", "*/15 * * * *", ["2026-10-03 15:15", "2026-10-03 15:30", "2026-10-03 15:45"]),
    ("Pacific/Chatham", "*/15 * * * *", ["2026-04-04 13:45", "2026-04-04 14:00", "2026-04-04 14:15"]),
    ("Pacific/Chatham", "*/15 * * * *", ["2026-09-26 13:45", "2026-09-26 14:00", "2026-09-26 14:15"]),
]
"""Patterns below a day follow elapsed time."""


@pytest.mark.parametrize(("tz", "cron", "expected"), DAILY + ELAPSED)
def test_what_happens_when_clocks_are_changed(tz: str, cron: str, expected: list[str]) -> None:
    found = timetable(cron=cron, tz=tz)
    start = utc(expected[0]) - 1
    assert after(found, start, len(expected)) == expected
    single = [expected[0]]
    while len(single) < len(expected):  # one after the other, as a schedule goes from each occurrence to the next
        single += after(found, utc(single[-1]), 1)
    assert single == expected


@pytest.mark.parametrize("tz", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham"])
@pytest.mark.parametrize("time", ["0 0", "30 1", "45 1", "0 2", "15 2", "30 2", "50 2", "0 3", "30 3", "50 3", "59 23"])
def test_a_fixed_time_occurs_once_on_each_day_of_two_years(tz: str, time: str) -> None:
    found = timetable(cron=f"{time} * * *", tz=tz)
    start = datetime(2026, 1, 1, tzinfo=ZoneInfo(tz))
    moments = list(itertools.takewhile(lambda at: at < utc("2028-01-02"), found.upcoming(from_datetime(start) - 1)))
    days = [to_datetime(at).astimezone(ZoneInfo(tz)).date() for at in moments]
    assert days[:730] == [start.date() + timedelta(days=number) for number in range(730)]


@settings(deadline=None)
@given(
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham", "UTC"]),
    st.sampled_from(["30 2 * * *", "45 1 * * *", "*/20 * * * *", "0 */2 * * *", "15 3 L * *", "0 2 * * sun#1"]),
    st.integers(utc("2026-01-01"), utc("2027-12-31")),
)
def test_the_next_occurrence_is_always_later_whenever_one_asks(tz: str, cron: str, moment: int) -> None:
    found = timetable(cron=cron, tz=tz)
    upcoming = list(itertools.islice(found.upcoming(moment), 4))
    assert moment < upcoming[0]
    assert upcoming == sorted(set(upcoming))
    assert [found.after(at) for at in upcoming[:-1]] == upcoming[1:]


# ---------------------------------------------------------------- cron


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 9 * * mon-fri", ["2026-01-16 09:00", "2026-01-19 09:00", "2026-01-20 09:00"]),
        ("0 0 L * *", ["2026-01-31 00:00", "2026-02-28 00:00", "2026-03-31 00:00"]),
        ("0 12 * * fri#2", ["2026-02-13 12:00", "2026-03-13 12:00", "2026-04-10 12:00"]),
        ("0 0 * * 5L", ["2026-01-30 00:00", "2026-02-27 00:00", "2026-03-27 00:00"]),
        ("0 0 29 feb *", ["2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"]),
        ("*/20 8-9 1 JAN *", ["2027-01-01 08:00", "2027-01-01 08:20", "2027-01-01 08:40"]),
        ("0 0 13 * fri", ["2026-01-16 00:00", "2026-01-23 00:00", "2026-01-30 00:00"]),
    ],
)
def test_expressions_have_names_last_days_and_numbered_weekdays(cron: str, expected: list[str]) -> None:
    assert after(timetable(cron=check_cron(cron, "UTC", NOW)), NOW, 3) == expected


@pytest.mark.parametrize("alias", [*ALIASES, "@DAILY"])
def test_names_of_expressions_are_expanded(alias: str) -> None:
    assert check_cron(alias, "UTC", NOW) == ALIASES[alias.lower()]


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        *(("0 0 30 2 *", "never occurs"), ("0 0 31 feb,apr,jun *", "never occurs"), ("0 0 30 2 */2", "never occurs")),
        *(
            ("61 * * * *", "bad minute"),
            ("0 0 30 13 *", "bad month"),
            ("0 0 32 * *", "bad day"),
            ("* 24 * * *", "bad hour"),
            ("* * * * mon#6", "bad day-of-week"),
        ),
        *(("* * * *", "five fields"), ("* * * * * *", "every="), ("", "five fields"), ("@reboot", "@daily")),
        *(("* * * * mon#1/2", "bad day-of-week"), ("a b c d e", "bad minute"), (5, "cron must be a text")),
        ("0 0 1 1 " + "1," * 300 + "1", "at most 500"),
    ],
)
def test_an_expression_that_is_wrong_or_never_occurs_is_rejected(cron: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words) as raised:
        check_cron(cron, "UTC", NOW)
    assert ("never occurs" in str(raised.value)) == (words == "never occurs")


@pytest.mark.parametrize("tz", ["Mars/Base", "Europe", "../etc/passwd", "", "a\0b", "utc+1"])
def test_an_unknown_zone_is_rejected(tz: str) -> None:
    with pytest.raises(OptionError, match="no time zone"):
        timetable(cron="* * * * *", tz=tz)


# ---------------------------------------------------------------- intervals


def test_an_interval_is_a_grid_from_its_anchor() -> None:
    found = timetable(anchor=NOW, every=30 * SECOND)
    assert found.after(NOW) == NOW + 30 * SECOND
    assert found.after(NOW + 31 * SECOND) == NOW + 60 * SECOND
    assert found.after(NOW + 60 * SECOND) == NOW + 90 * SECOND
    assert found.after(NOW - 1000 * SECOND) == NOW + 30 * SECOND


def test_a_grid_that_was_told_its_start_has_an_occurrence_there() -> None:
    found = timetable(anchor=NOW, every=30 * SECOND, starts_at=NOW)
    assert found.after(NOW - 1000 * SECOND) == NOW
    assert found.after(NOW) == NOW + 30 * SECOND


def test_nothing_occurs_before_the_start_or_after_the_end() -> None:
    options = {"starts_at": NOW + 100 * SECOND, "ends_at": NOW + 160 * SECOND}
    found = timetable(anchor=NOW + 100 * SECOND, every=30 * SECOND, **options)
    assert list(found.upcoming(NOW)) == [NOW + seconds * SECOND for seconds in (100, 130, 160)]
    found = timetable(cron="* * * * *", starts_at=NOW + 3600 * SECOND, ends_at=NOW + 3720 * SECOND)
    assert after(found, NOW, 9) == ["2026-01-15 13:01", "2026-01-15 13:02"]


@settings(deadline=None)
@given(st.integers(0, 2000), st.sampled_from([0, 1, 1000]), st.booleans())
def test_occurrences_that_are_due_are_all_counted_and_the_latest_are_listed(
    late: int, keep: int, is_cron: bool
) -> None:
    found = timetable(cron="* * * * *") if is_cron else timetable(every=60 * SECOND)
    first = found.after(NOW)
    assert first is not None
    now = first + late * 60 * SECOND + SECOND
    counted, at = 0, first
    while True:
        due = found.due(at, now, keep)
        counted += due.passed + len(due.moments)
        assert due.next_at is not None
        if due.moments:
            break
        assert due.passed == CHUNK
        at = due.next_at
    assert counted == late + 1
    assert due.moments == [first + (late - number) * 60 * SECOND for number in reversed(range(len(due.moments)))]
    assert len(due.moments) == min(late, keep) + 1
    assert due.next_at == first + (late + 1) * 60 * SECOND


# ---------------------------------------------------------------- jitter


def test_the_delay_of_an_occurrence_is_always_the_same_and_differs_from_others() -> None:
    found = timetable(every=60 * SECOND, jitter=30 * SECOND)
    moments = list(itertools.islice(found.upcoming(NOW), 200))
    delays = [found.due_at(at) - at for at in moments]
    assert delays == [found.due_at(at) - at for at in moments]
    assert len(set(delays)) > 190
    assert 0 <= min(delays) < 3 * SECOND
    assert 27 * SECOND < max(delays) < 30 * SECOND
    other = Timetable(NewSchedule(name="other", task=NewTask(kind="work"), every=60 * SECOND, jitter=30 * SECOND), NOW)
    assert delays != [other.due_at(at) - at for at in moments]


# ---------------------------------------------------------------- options that do not fit


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "at least 100 ms, got 0 s"),
        ({"every": 99_999}, "at least 100 ms"),
        ({"every": 60 * SECOND, "starts_at": NOW, "ends_at": NOW - 1}, "ends_at must not be before starts_at"),
        ({"every": 60 * SECOND, "missed": "all"}, 'use overlap="queue"'),
        ({"every": 60 * SECOND, "jitter": 60 * SECOND}, r"jitter must be shorter .* \(60 s\)"),
        ({"cron": "0,5 * * * *", "jitter": 300 * SECOND}, r"\(300 s\)"),
    ],
)
def test_options_that_do_not_fit_each_other_are_rejected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        check_timetable(NewSchedule(name="report", task=NewTask(kind="work"), **options), NOW)
