"""The timetable of a schedule: computes its occurrences.

The occurrences of an interval are multiples of it from its anchor on, so they do not drift. Cron expressions are those
of cronsim, in the zone of the schedule. Summer time: a fixed time in the skipped hour occurs once, right after that
hour; a fixed time in the repeated hour occurs once; patterns with `*` in the minute or hour follow elapsed time.

Moments are whole microseconds since 1970.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any, Final, NamedTuple

from synergon.errors import OptionError
from synergon.model.record import EPOCH, from_datetime, to_datetime
from synergon.model.schedules import NewSchedule

SHORTEST_INTERVAL: Final = 100_000
"""The shortest interval: 100 ms."""
LONGEST_CRON: Final = 500
CHUNK: Final = 200
"""How many old occurrences of a cron expression are counted at once, so that no transaction takes long."""
_GAPS: Final = 20
"""How many of the next occurrences are checked: the jitter must be shorter than the time between two of them."""

ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Due(NamedTuple):
    """The occurrences that are due."""

    passed: int
    """How many of them are older than `moments`: they never run."""
    moments: list[int]
    """The latest ones, ascending. Empty if there are too many to count at once; the rest is due at `next_at`."""
    next_at: int | None
    """The first occurrence that is not due yet, or was not counted yet. None if there is none."""


class Timetable:
    """The occurrences of one schedule. `anchor` is the moment from which an interval counts. Raises OptionError if the
    cron expression or the time zone is invalid."""

    def __init__(self, schedule: NewSchedule, anchor: int) -> None:
        self._schedule = schedule
        self._anchor = anchor
        self._zone = zone(schedule.tz)
        if schedule.every is None:
            cron_simulation(schedule.cron or "", EPOCH)

    def after(self, moment: int) -> int | None:
        """The first occurrence later than `moment`; None if there is none."""
        return next(self.upcoming(moment), None)

    def upcoming(self, moment: int) -> Iterator[int]:
        """The occurrences later than `moment`, ascending."""
        ends_at = self._schedule.ends_at
        following = self._following(moment)
        return following if ends_at is None else itertools.takewhile(lambda found: found <= ends_at, following)

    def due_at(self, occurrence: int) -> int:
        """When the occurrence is due, including its jitter, which is computed from the occurrence and so never
        changes."""
        schedule = self._schedule
        if not schedule.jitter:
            return occurrence
        import hashlib  # slow to load

        digest = hashlib.blake2b(f"{schedule.name}\n{occurrence}".encode(), digest_size=8).digest()
        return occurrence + int.from_bytes(digest) % schedule.jitter

    def is_missed(self, occurrence: int, now: int) -> bool:
        """Whether the occurrence is missed, because the next one is due already. The next one counts even if it is
        after `ends_at`."""
        following = next(self._following(occurrence), None)
        return following is not None and self.due_at(following) <= now

    def first_not_due(self, first: int, now: int) -> int | None:
        """The first occurrence from `first` on that is not due yet; None if there is none."""
        start = max(now - self._schedule.jitter, first - 1)
        return next((found for found in self.upcoming(start) if self.due_at(found) > now), None)

    def due(self, first: int, now: int, keep: int) -> Due:
        """The occurrences from `first` on that are due. The last `keep` + 1 of them are returned as moments; older ones
        are only counted."""
        if self._schedule.every is not None:
            return self._due_of_grid(first, now, keep, self._schedule.every)
        most = keep + 1 + CHUNK
        moments = [first]
        upcoming = self.upcoming(first)
        next_at = next(upcoming, None)
        while next_at is not None and self.due_at(next_at) <= now and len(moments) < most:
            moments.append(next_at)
            next_at = next(upcoming, None)
        if len(moments) == most:
            return Due(CHUNK, [], moments[CHUNK])
        passed = max(len(moments) - keep - 1, 0)
        return Due(passed, moments[passed:], next_at)

    def _due_of_grid(self, first: int, now: int, keep: int, every: int) -> Due:
        ends_at = self._schedule.ends_at
        last = first + max((now if ends_at is None else min(now, ends_at)) - first, 0) // every * every
        while last > first and self.due_at(last) > now:
            last -= every
        passed = max((last - first) // every - keep, 0)
        return Due(passed, list(range(first + passed * every, last + 1, every)), self.after(last))

    def _following(self, moment: int) -> Iterator[int]:
        """The occurrences later than `moment`, also those after `ends_at`."""
        schedule = self._schedule
        if schedule.starts_at is not None:
            moment = max(moment, schedule.starts_at - 1)
        if schedule.every is not None:
            # Only a grid that was told its start has an occurrence there.
            least = 0 if schedule.starts_at is not None else 1
            number = max((moment - self._anchor) // schedule.every + 1, least)
            return itertools.count(self._anchor + number * schedule.every, schedule.every)
        return _cron_moments(schedule.cron or "", self._zone, moment)


def _cron_moments(cron: str, in_zone: tzinfo, moment: int) -> Iterator[int]:
    for found in cron_simulation(cron, to_datetime(moment).astimezone(in_zone)):
        occurrence = from_datetime(found)
        if occurrence > moment:  # in the repeated hour the first ones may lie before it
            yield occurrence


def cron_simulation(cron: str, start: datetime) -> Iterator[datetime]:
    """The occurrences of a cron expression after `start`. Raises OptionError if `cron` is invalid or never occurs."""
    from cronsim import CronSim, CronSimError

    try:
        return CronSim(cron, start)
    except CronSimError as error:
        if _is_valid_in_another_month(cron, start):
            raise OptionError(
                f"the cron expression {cron!r} never occurs: none of its months has that day; change the day or the "
                "month"
            ) from error
        raise OptionError(
            f"{cron!r} is no cron expression: {str(error).lower()}; it has five fields: minute, hour, day of the "
            'month, month, day of the week, like "0 9 * * mon-fri"'
        ) from error


def _is_valid_in_another_month(cron: str, start: datetime) -> bool:
    from cronsim import CronSim, CronSimError

    fields = cron.split()
    try:
        CronSim(" ".join(["0", "0", "1", *fields[3:]]), start)
        CronSim(" ".join([*fields[:3], "*", *fields[4:]]), start)
    except CronSimError:
        return False
    return True


@lru_cache(maxsize=1000)
def zone(name: str) -> tzinfo:
    """The time zone with this name. Raises OptionError if there is none."""
    from zoneinfo import ZoneInfo

    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # also names of folders, and paths
        raise OptionError(f"there is no time zone {name!r}; name one like 'Europe/Berlin', or 'UTC'") from error


# ---------------------------------------------------------------- checks


def check_cron(value: Any, tz: str, now: int) -> str:
    """Check a cron expression, and expand names like `@daily`."""
    if not isinstance(value, str) or len(value) > LONGEST_CRON:
        raise OptionError(
            f'cron must be a text of at most {LONGEST_CRON} characters, like "0 9 * * mon-fri", got {value!r}'
        )
    text = " ".join(value.split())
    if text.startswith("@"):
        if text.lower() not in ALIASES:
            raise OptionError(f"there is no {text!r}; cron has {', '.join(ALIASES)}")
        text = ALIASES[text.lower()]
    if len(text.split()) != 5:
        raise OptionError(
            f"cron has five fields (minute, hour, day of the month, month, day of the week), got {value!r}; for less "
            'than a minute use every="10s"'
        )
    if next(iter(cron_simulation(text, to_datetime(now).astimezone(zone(tz)))), None) is None:
        raise OptionError(f"the cron expression {value!r} never occurs")
    return text


def check_timetable(schedule: NewSchedule, now: int) -> None:
    """Raise OptionError if options of the schedule contradict each other."""
    starts_at, ends_at = schedule.starts_at, schedule.ends_at
    where = f"schedule {schedule.name!r}"
    if schedule.every is not None and schedule.every < SHORTEST_INTERVAL:
        raise OptionError(f"{where}: every must be at least 100 ms, got {schedule.every / 1_000_000:g} s")
    if schedule.every is not None and schedule.tz != "UTC":
        raise OptionError(f"{where}: tz is for cron; an interval follows elapsed time in every zone")
    if starts_at is not None and ends_at is not None and ends_at < starts_at:
        raise OptionError(f"{where}: ends_at must not be before starts_at")
    if schedule.missed == "all" and schedule.overlap == "skip":
        raise OptionError(
            f'{where}: missed="all" would insert several tasks at once, and overlap="skip" allows one; '
            'use overlap="queue", or missed="one"'
        )
    if schedule.jitter:
        soon = list(itertools.islice(Timetable(schedule, now).upcoming(now), _GAPS))
        gap = min((after - before for before, after in itertools.pairwise(soon)), default=None)
        if gap is not None and schedule.jitter >= gap:
            raise OptionError(
                f"{where}: jitter must be shorter than the time between two occurrences ({gap / 1_000_000:g} s), "
                f"got {schedule.jitter / 1_000_000:g} s"
            )
