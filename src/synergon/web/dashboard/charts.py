"""The last hour, day or week as figures and bars, from the statistics that engines and workers keep."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from synergon.model.task_statistics import FAILURES, Histogram, Statistics, failures
from synergon.web.dashboard.text import duration
from synergon.web.redaction import Redactor

Since = Literal["1h", "1d", "7d"]
PERIODS: Final[dict[Since, str]] = {"1h": "last hour", "1d": "last day", "7d": "last week"}
BARS: Final[dict[Since, int]] = {"1h": 60, "1d": 3600, "7d": 6 * 3600}
"""How many seconds each bar of a chart covers, by period."""
HEIGHT: Final = 100
STEP: Final = 10
"""The distance between the left edges of two bars. A fifth of it is a gap."""
GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: what happened in one span of time. Positions are those of the drawing."""

    at: datetime
    succeeded: int
    failed: int
    depths: dict[str, int]
    """How many tasks of each queue were ready at most, the deepest queue first."""
    wait_95: float | None
    """The 95th percentile of the seconds from the due time of tasks to their start. None if none has started."""
    x: int
    succeeded_height: float
    failed_height: float
    depth_height: float
    wait_height: float

    @property
    def depth(self) -> int:
        """How many tasks were ready at most."""
        return sum(self.depths.values())


@dataclass(frozen=True, slots=True)
class Chart:
    """The bars of a period, the oldest first."""

    bars: list[Bar]
    most: int
    """The number of ended tasks that a bar of the full height stands for."""
    deepest: int
    """The depth that a bar of the full height stands for."""
    slowest: float
    """The start latency that a bar of the full height stands for, in seconds."""
    seconds: int
    """How many seconds a bar covers."""

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
    depth: int

    @classmethod
    def of(cls, found: Iterable[Statistics]) -> Figures:
        """The sums."""
        listed = list(found)
        return cls(
            accepted=sum(one.accepted for one in listed),
            started=sum(one.started for one in listed),
            succeeded=sum(one.succeeded for one in listed),
            failed=sum(failures(one.ended) for one in listed),
            wait=Histogram.total([one.wait for one in listed]),
            run=Histogram.total([one.run for one in listed]),
            depth=sum(one.depth for one in listed),
        )

    @property
    def failed_part(self) -> str:
        """The part of the attempts that ended with a failure, in per cent."""
        ended = self.succeeded + self.failed
        return f"{self.failed / ended * 100:.1f} %" if ended else "–"

    def waited(self, part: float) -> str:
        """The percentile `part` of the times that tasks waited for their start, as text."""
        return duration(self.wait.percentile(part)) or "–"

    def ran(self, part: float) -> str:
        """The percentile `part` of the run times of attempts, as text."""
        return duration(self.run.percentile(part)) or "–"


def spans_of(since: Since, now: datetime) -> range:
    """The spans of the period until `now`. Each is the number of spans since 1970."""
    last = int(now.timestamp()) // BARS[since]
    return range(last - {"1h": 60, "1d": 24, "7d": 28}[since] + 1, last + 1)


def chart(found: Iterable[Statistics], since: Since, now: datetime) -> Chart:
    """The bars of the period until now."""
    seconds, spans = BARS[since], spans_of(since, now)
    succeeded: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    waits: defaultdict[int, list[Histogram]] = defaultdict(list)
    depths: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for one in found:
        peaks: Counter[int] = Counter()
        for point in one.points:
            span = int(point.at.timestamp()) // seconds
            succeeded[span] += point.succeeded
            failed[span] += point.failed
            peaks[span] = max(peaks[span], point.depth)
            if point.started:
                waits[span].append(point.wait)
        for span, depth in peaks.items():
            depths[span][one.queue] += depth
    latencies = {span: Histogram.total(waits[span]).percentile(0.95) for span in spans}
    most = max(max(succeeded[span] + failed[span] for span in spans), 1)
    deepest = max(max(depths[span].total() for span in spans), 1)
    slowest = max((wait or 0.0) for wait in latencies.values()) or 0.001
    bars = [
        Bar(
            at=now.fromtimestamp(span * seconds, tz=now.tzinfo),
            succeeded=succeeded[span],
            failed=failed[span],
            depths={queue: depth for queue, depth in depths[span].most_common() if depth},
            wait_95=latencies[span],
            x=index * STEP,
            succeeded_height=_height(succeeded[span], most),
            failed_height=_height(failed[span], most),
            depth_height=_height(depths[span].total(), deepest),
            wait_height=_height(latencies[span] or 0.0, slowest),
        )
        for index, span in enumerate(spans)
    ]
    return Chart(bars, most, deepest, slowest, seconds)


def sparkline(values: Mapping[int, int], spans: range) -> str:
    """A line through these numbers, as the points of a drawing that is 100 wide and 20 high. Empty if all are zero."""
    most = max((values.get(span, 0) for span in spans), default=0)
    if not most:
        return ""
    step = 100 / max(len(spans) - 1, 1)
    return " ".join(
        f"{index * step:.1f},{19 - values.get(span, 0) / most * 18:.1f}" for index, span in enumerate(spans)
    )


def starts(found: Iterable[Statistics], since: Since) -> Counter[int]:
    """The starts of attempts in each span."""
    counted: Counter[int] = Counter()
    for one in found:
        for point in one.points:
            counted[int(point.at.timestamp()) // BARS[since]] += point.started
    return counted


def depths_of(found: Iterable[Statistics], since: Since) -> Counter[int]:
    """The depth in each span."""
    counted: Counter[int] = Counter()
    for one in found:
        peaks: Counter[int] = Counter()
        for point in one.points:
            span = int(point.at.timestamp()) // BARS[since]
            peaks[span] = max(peaks[span], point.depth)
        counted += peaks
    return counted


def _height(count: float, most: float) -> float:
    """The height of a part of a bar. Unless it is zero, it is large enough to be visible."""
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
