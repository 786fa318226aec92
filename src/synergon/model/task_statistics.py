"""Records of statistics: how many tasks of a kind and queue were accepted, started and ended in a span of time, how
long they waited and ran, and which errors were the commonest."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Annotated, Final

import msgspec

from synergon.model.lifecycle import Reason
from synergon.model.record import Record

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86400
SPANS: Final = (MINUTE, HOUR, DAY)
"""The lengths of time, in seconds, that a row of statistics can cover."""

BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0),
)
"""The upper bounds of the buckets of wait and run times, in seconds. The last bucket has no bound."""
EMPTY: Final = (0,) * (len(BOUNDS) + 1)

LATENCIES: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the buckets of calls of the store and of peers, in seconds."""

MAX_ERRORS: Final = 20
"""How many different errors a row of statistics has at most. The commonest are kept."""
SUCCEEDED: Final = "succeeded"
CANCELLED: Final = "cancelled"
FAILURES: Final = frozenset(str(reason) for reason in Reason) - {"cancelled", "dependency"}
"""The reasons with which an attempt ends its task as failed."""

SHOWN_CHARACTERS: Final = 200
"""How many characters of an error's message are kept."""
READ_CHARACTERS: Final = 2000
"""How many characters of an error's message are used for its fingerprint."""
_VARIABLE: Final = re.compile(
    r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|\b(?=[a-f]*[0-9])[0-9a-f]{12,}\b|\d+"
)
_QUOTED: Final = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""A number in a row. A larger one is unreadable, so that sums of rows are never too large to be written."""


class ErrorCount(Record, frozen=True, kw_only=True):
    """How often an error occurred. Errors that differ only in numbers, ids and quoted texts count as one."""

    type: str
    message: str
    """The message, in which each number or id is `#`, and each quoted text `'…'`."""
    count: Count = 1


def fingerprint(type_name: str, message: str) -> tuple[str, str]:
    """Returns a digest that is equal for errors of one type whose messages differ only in numbers, ids and quoted
    texts, and the message with these replaced."""
    common = _VARIABLE.sub("#", _QUOTED.sub("'…'", message[:READ_CHARACTERS]))
    import hashlib  # slow to load

    digest = hashlib.blake2b(f"{type_name}\n{common}".encode(errors="replace"), digest_size=8).hexdigest()
    return digest, common[:SHOWN_CHARACTERS]


class Histogram(Record, frozen=True, kw_only=True):
    """Counts durations by bucket, and has their sum."""

    counts: tuple[Count, ...] = EMPTY
    """The number of durations in each bucket of `BOUNDS`, not cumulative."""
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """The sum of all durations."""

    def __post_init__(self) -> None:
        if len(self.counts) != len(EMPTY):
            raise ValueError(f"a histogram has {len(EMPTY)} counts, got {len(self.counts)}")

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The mean duration in seconds. None if there is no duration."""
        return self.seconds / self.count if self.count else None

    def percentile(self, part: float) -> float | None:
        """The duration in seconds that the fraction `part` (0 to 1) of all durations does not exceed, estimated from
        the buckets. A duration beyond the last bound counts as that bound. None if there is no duration."""
        total = self.count
        if not total:
            return None
        sums = list(accumulate(self.counts))
        wanted = max(part * total, 1e-9)
        bucket = min(bisect_left(sums, wanted), len(BOUNDS))
        if bucket == len(BOUNDS):
            return BOUNDS[-1]
        below, lower = (sums[bucket - 1], BOUNDS[bucket - 1]) if bucket else (0, 0.0)
        return lower + (BOUNDS[bucket] - lower) * (wanted - below) / self.counts[bucket]

    @classmethod
    def total(cls, histograms: Sequence[Histogram]) -> Histogram:
        """The sum of histograms, in one step, because there may be thousands of them."""
        filled = [one for one in histograms if one.counts != EMPTY]
        if len(filled) <= 1:
            return filled[0] if filled else cls()
        counts = tuple(map(sum, zip(*(one.counts for one in filled), strict=True)))
        return cls(counts=counts, seconds=sum(one.seconds for one in filled))

    def __sub__(self, other: Histogram) -> Histogram:
        return Histogram(
            counts=tuple(map(int.__sub__, self.counts, other.counts)), seconds=max(self.seconds - other.seconds, 0.0)
        )


class Buckets:
    """A mutable histogram: counts values by bucket, and has their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: Final = bounds
        self.counts: Final = [0] * (len(bounds) + 1)
        self.sum: float = 0.0

    def observe(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Numbers(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What happened to the tasks of one kind and queue in a span of time."""

    accepted: Count = 0
    started: Count = 0
    """Attempts that were started."""
    ended: dict[str, Count] = {}
    """Attempts that ended, by reason, as in the metric `synergon_attempts_finished`."""
    wait: Histogram = Histogram()
    run: Histogram = Histogram()
    errors: dict[str, ErrorCount] = {}
    """The commonest errors, by fingerprint, at most `MAX_ERRORS`."""
    depth: Count = 0
    """The largest number of tasks that were ready at once."""

    @classmethod
    def total(cls, numbers: Sequence[Numbers]) -> Numbers:
        """The sums of numbers, and the largest depth."""
        if len(numbers) == 1:
            return numbers[0]
        ended: Counter[str] = Counter()
        errors: dict[str, ErrorCount] = {}
        for one in numbers:
            for reason, number in one.ended.items():
                ended[reason] += number
            if one.errors:
                errors = _add_errors(errors, one.errors)
        return cls(
            accepted=sum(one.accepted for one in numbers),
            started=sum(one.started for one in numbers),
            ended={reason: number for reason, number in ended.items() if number},
            wait=Histogram.total([one.wait for one in numbers]),
            run=Histogram.total([one.run for one in numbers]),
            errors=errors,
            depth=max((one.depth for one in numbers), default=0),
        )

    def without(self, earlier: Numbers) -> Numbers:
        """The numbers that were added since `earlier`. Errors are not subtracted."""
        ended = {reason: number - earlier.ended.get(reason, 0) for reason, number in self.ended.items()}
        return Numbers(
            accepted=self.accepted - earlier.accepted,
            started=self.started - earlier.started,
            ended={reason: number for reason, number in ended.items() if number},
            wait=self.wait - earlier.wait,
            run=self.run - earlier.run,
            errors=self.errors,
        )


def _add_errors(first: Mapping[str, ErrorCount], second: Mapping[str, ErrorCount]) -> dict[str, ErrorCount]:
    if not (first and second):
        return dict(first or second)
    found = dict(first)
    for key, error in second.items():
        known = found.get(key)
        found[key] = error if known is None else msgspec.structs.replace(known, count=known.count + error.count)
    return commonest(found)


def commonest(errors: Mapping[str, ErrorCount]) -> dict[str, ErrorCount]:
    """The commonest of these errors, at most `MAX_ERRORS`."""
    if len(errors) <= MAX_ERRORS:
        return dict(errors)
    return dict(sorted(errors.items(), key=lambda item: -item[1].count)[:MAX_ERRORS])


class KindNumbers(Record, frozen=True, kw_only=True):
    """What one engine has counted for a kind and queue."""

    kind: str
    queue: str
    numbers: Numbers


class StatisticsQuery(Record, frozen=True, kw_only=True):
    """Which statistics to read."""

    age: int
    """How far back from now the statistics go, in microseconds."""
    kind: str | None = None
    queue: str | None = None


class StatisticsPoint(Record, frozen=True, kw_only=True):
    """What happened in one span of time."""

    at: datetime
    """When the span began."""
    accepted: int = 0
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    wait: Histogram = Histogram()
    """How long tasks waited for their starts after they were due."""
    depth: int = 0
    """The largest number of tasks that were ready at once, as workers count them once a minute."""


class Statistics(Record, frozen=True, kw_only=True):
    """What happened to the tasks of one kind and queue since a moment, as engines and workers have counted it."""

    kind: str
    queue: str
    since: datetime
    until: datetime
    accepted: int
    """Tasks that were enqueued."""
    started: int
    """Attempts that were started."""
    ended: dict[str, int]
    """Attempts that ended, by reason: `succeeded`, `cancelled`, the reason of a final failure, or what became of the
    task instead, such as `retried`."""
    wait: Histogram
    """How long tasks waited for their starts after they were due."""
    run: Histogram
    """How long attempts ran."""
    errors: tuple[ErrorCount, ...]
    """The commonest errors of attempts, the commonest first."""
    depth: int
    """The largest number of tasks that were ready at once, as workers count them once a minute."""
    span_seconds: int
    """The length of the span of each point: a minute, an hour or a day."""
    points: tuple[StatisticsPoint, ...]
    """Oldest first, without spans in which nothing happened."""

    @property
    def succeeded(self) -> int:
        """How many attempts ended with the success of their task."""
        return self.ended.get(SUCCEEDED, 0)

    @property
    def failed(self) -> dict[str, int]:
        """How many attempts ended with the failure of their task, by reason."""
        return {reason: number for reason, number in self.ended.items() if reason in FAILURES}


def failures(ended: Mapping[str, int]) -> int:
    """How many of these attempts ended with the failure of their task."""
    return sum(number for reason, number in ended.items() if reason in FAILURES)
