"""Statistics: what engines and workers have counted, in rows of a minute, an hour or a day.

An engine writes one row for each minute, kind and queue, and replaces it until the minute is over. So a write can be
repeated, and no engine waits for another. Old minutes are merged into hours, and old hours into days.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from synergon.model.record import to_datetime
from synergon.model.task_statistics import (
    DAY,
    HOUR,
    MINUTE,
    SPANS,
    SUCCEEDED,
    Histogram,
    KindNumbers,
    Numbers,
    Statistics,
    StatisticsPoint,
    StatisticsQuery,
    failures,
)
from synergon.stores.rows import StatisticsRow
from synergon.stores.session import Session

SECOND: Final = 1_000_000
LARGER: Final = {MINUTE: HOUR, HOUR: DAY}
KEPT: Final = {MINUTE: 2 * HOUR * SECOND, HOUR: 8 * DAY * SECOND}
"""The age, in microseconds, at which rows are merged into larger spans."""
MERGED: Final = ""
"""The source of rows that were merged."""


async def append(session: Session, source: str, at: int, counted: Sequence[KindNumbers]) -> None:
    """Write what the engine `source` has counted in the minute that begins at `at`. Replaces what the engine wrote
    earlier about this minute."""
    await session.statistics.write(
        [StatisticsRow(MINUTE, at, one.kind, one.queue, source, one.numbers) for one in counted]
    )


async def read(session: Session, query: StatisticsQuery) -> list[Statistics]:
    """The statistics of each kind and queue, by name. The span in which the queried time begins is included as a
    whole."""
    now = await session.read_clock()
    since = now - query.age
    rows = [
        row
        for span in SPANS
        for row in await session.statistics.since(span, start_of(span, since), query.kind, query.queue)
    ]
    by_name: dict[tuple[str, str], list[StatisticsRow]] = {}
    for row in rows:
        by_name.setdefault((row.kind, row.queue), []).append(row)
    span = span_for(query.age)
    return [_statistics(name, by_name[name], span, since, now) for name in sorted(by_name)]


async def compact(session: Session, limit: int) -> int:
    """Merge at most `limit` old minutes into hours, and old hours into days. Returns how many were merged."""
    now = await session.read_clock()
    if not [span for span in LARGER if await _oldest(session, span, now) is not None]:
        return 0
    await session.locks.statistics()
    merged = 0
    for span, larger in LARGER.items():
        while merged < limit and (at := await _oldest(session, span, now)) is not None:
            await _merge(session, span, at, larger)
            merged += 1
    return merged


async def _oldest(session: Session, span: int, now: int) -> int | None:
    return await session.statistics.oldest(span, start_of(LARGER[span], now - KEPT[span]))


async def _merge(session: Session, span: int, at: int, larger: int) -> None:
    start = start_of(larger, at)
    sums = merged(
        [*await session.statistics.take(larger, start), *await session.statistics.take(span, at)],
    )
    await session.statistics.write(
        [StatisticsRow(larger, start, kind, queue, MERGED, numbers) for (kind, queue), numbers in sums.items()]
    )


def merged(rows: Iterable[StatisticsRow]) -> dict[tuple[str, str], Numbers]:
    """The sums of these rows, by kind and queue."""
    found: dict[tuple[str, str], list[Numbers]] = {}
    for row in rows:
        found.setdefault((row.kind, row.queue), []).append(row.numbers)
    return {name: Numbers.total(numbers) for name, numbers in found.items()}


def start_of(span: int, moment: int) -> int:
    """The start of the span of `span` seconds that contains `moment`."""
    return moment - moment % (span * SECOND)


def span_for(age: int) -> int:
    """The shortest span whose rows are kept for `age` microseconds. Older rows were merged into larger spans."""
    return next((span for span, retention in KEPT.items() if age <= retention), DAY)


def _statistics(name: tuple[str, str], rows: Sequence[StatisticsRow], span: int, since: int, now: int) -> Statistics:
    numbers = Numbers.total([row.numbers for row in rows])
    by_start: dict[int, list[StatisticsRow]] = {}
    for row in rows:
        by_start.setdefault(start_of(max(span, row.span), row.at), []).append(row)
    kind, queue = name
    return Statistics(
        kind=kind,
        queue=queue,
        since=to_datetime(since),
        until=to_datetime(now),
        accepted=numbers.accepted,
        started=numbers.started,
        ended=numbers.ended,
        wait=numbers.wait,
        run=numbers.run,
        errors=tuple(sorted(numbers.errors.values(), key=lambda error: -error.count)),
        depth=numbers.depth,
        span_seconds=span,
        points=tuple(_point(start, by_start[start]) for start in sorted(by_start)),
    )


def _point(start: int, rows: Sequence[StatisticsRow]) -> StatisticsPoint:
    return StatisticsPoint(
        at=to_datetime(start),
        accepted=sum(row.numbers.accepted for row in rows),
        started=sum(row.numbers.started for row in rows),
        succeeded=sum(row.numbers.ended.get(SUCCEEDED, 0) for row in rows),
        failed=sum(failures(row.numbers.ended) for row in rows),
        wait=Histogram.total([row.numbers.wait for row in rows]),
        depth=max(row.numbers.depth for row in rows),
    )
