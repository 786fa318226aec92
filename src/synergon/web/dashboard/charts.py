"""The last hour, day or week as figures and bars, from the statistics that engines and workers keep."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from synergon.model.task_statistics import FAILURES, Histogram, Statistics, failures
from synergon.web.dashboard.text import duration
from synergon.web.redaction import Redactor

Since = Literal["1h", "1d", "7d"]
BARS: Final[dict[Since, int]] = {"1h": 60, "1d": 3600, "7d": 6 * 3600}
"""How many seconds each bar of a chart is about."""
HEIGHT: Final = 100
STEP: Final = 10
"""How far bars are apart. A fifth of it is a gap."""
GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Bar:
    """The ends of attempts in one span of time. Positions are those of the drawing."""

    at: datetime
    succeeded: int
    failed: int
    x: int
    succeeded_height: float
    failed_height: float


@dataclass(frozen=True, slots=True)
class Chart:
    """The bars of a period, the oldest first."""

    bars: list[Bar]
    most: int
    """What a bar of the full height counts."""
    seconds: int
    """How many seconds a bar is about."""

    @property
    def width(self) -> int:
        """The width of the drawing."""
        return len(self.bars) * STEP


@dataclass(frozen=True, slots=True)
class Figures:
    """The sums of some kinds and queues."""

    accepted: int
    started: int
    succeeded: int
    failed: int
    wait: Histogram
    run: Histogram

    @classmethod
    def of(cls, found: Iterable[Statistics]) -> Figures:
        """The sums."""
        listed = list(found)
        return cls(
            accepted=sum(one.accepted for one in listed),
            started=sum(one.started for one in listed),
            succeeded=sum(one.succeeded for one in listed),
            failed=sum(failures(one.ended) for one in listed),
            wait=sum((one.wait for one in listed), Histogram()),
            run=sum((one.run for one in listed), Histogram()),
        )

    @property
    def failed_part(self) -> str:
        """The part of the attempts that ended with a failure, in per cent."""
        ended = self.succeeded + self.failed
        return f"{self.failed / ended * 100:.1f} %" if ended else "–"

    @property
    def wait_95(self) -> str:
        """How long 95 of 100 tasks waited at most."""
        return duration(self.wait.percentile(0.95)) or "–"

    @property
    def run_95(self) -> str:
        """How long 95 of 100 attempts ran at most."""
        return duration(self.run.percentile(0.95)) or "–"


def chart(found: Iterable[Statistics], since: Since, now: datetime) -> Chart:
    """The bars of the period until now."""
    seconds = BARS[since]
    last = int(now.timestamp()) // seconds
    number = {"1h": 60, "1d": 24, "7d": 28}[since]
    succeeded: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    for one in found:
        for point in one.points:
            place = int(point.at.timestamp()) // seconds
            succeeded[place] += point.succeeded
            failed[place] += point.failed
    places = range(last - number + 1, last + 1)
    most = max(max((succeeded[place] + failed[place] for place in places), default=0), 1)
    bars = [
        Bar(
            at=now.fromtimestamp(place * seconds, tz=now.tzinfo),
            succeeded=succeeded[place],
            failed=failed[place],
            x=index * STEP,
            succeeded_height=_height(succeeded[place], most),
            failed_height=_height(failed[place], most),
        )
        for index, place in enumerate(places)
    ]
    return Chart(bars, most, seconds)


def _height(count: int, most: int) -> float:
    """The height of a part of a bar, which is seen if it is not zero."""
    return round(max(count / most * HEIGHT, 2.0), 2) if count else 0.0


def failing(found: Iterable[Statistics], redactor: Redactor, most: int) -> list[dict[str, Any]]:
    """The kinds with the most failures, each with its commonest error."""
    counts: Counter[str] = Counter()
    errors: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for one in found:
        counts[one.kind] += sum(number for reason, number in one.ended.items() if reason in FAILURES)
        for error in one.errors:
            errors[one.kind][error.type, error.message] += error.count
    rows = []
    for kind, count in counts.most_common(most):
        if count:
            (type_name, message), _ = (errors[kind].most_common(1) or [(("", ""), 0)])[0]
            rows.append({"kind": kind, "count": count, "type": type_name, "message": redactor.message(kind, message)})
    return rows
