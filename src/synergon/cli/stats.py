"""`synergon stats`: rates, wait and run times, and the commonest errors of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli.database import AppOption, JsonOption, UrlOption, run_connected
from synergon.cli.output import duration, new_table, print_line, print_table, short, write_json_lines
from synergon.engine import Engine
from synergon.model.task_statistics import Histogram, Statistics
from synergon.options.durations import rough

BARS: Final = "▁▂▃▄▅▆▇█"
SHOWN_BARS: Final = 12
SHOWN_ERRORS: Final = 5
PERCENTILES: Final = (0.5, 0.95, 0.99)
SPAN_NAMES: Final = {60: "minute", 3600: "hour", 86400: "day"}


def stats(
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only this kind.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="QUEUE", help="Only this queue.")] = None,
    since: Annotated[str, typer.Option(metavar="AGE", help="How far back, like 15m, 24h or 30d.")] = "1h",
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many tasks were enqueued, started and failed, and how long they took.

    Workers count, and write what they have counted with their heartbeats. `wait` is the time between the moment at
    which a task is due and its start, `run` that of an attempt; p95 means that 95 % took at most this long. The bars
    show the starts over time. With --json one kind and queue per line.
    """

    async def read(engine: Engine) -> list[Statistics]:
        return await engine.statistics(kind=kind, queue=queue, since=since)

    found = run_connected(app, url, read)
    if as_json:
        write_json_lines([_document(one) for one in found])
    elif not found:
        print_line("nothing was counted in this time")
    else:
        _print(found)


def _document(one: Statistics) -> dict[str, Any]:
    """The statistics with sums and percentiles, so that a program needs no buckets."""
    document = one.as_dict()
    for name, histogram in (("wait", one.wait), ("run", one.run)):
        percentiles = {f"p{round(part * 100)}_seconds": histogram.percentile(part) for part in PERCENTILES}
        document[name] |= {"count": histogram.count, "mean_seconds": histogram.mean, **percentiles}
    return {**document, "succeeded": one.succeeded, "failed": one.failed, "started_per_second": _rate(one)}


def _rate(one: Statistics) -> float:
    return one.started / max((one.until - one.since).total_seconds(), 1.0)


def _print(found: Sequence[Statistics]) -> None:
    first = found[0]
    length = rough((first.until - first.since).total_seconds())
    print_line(f"the last {length}; the bars are starts, by {SPAN_NAMES[first.span_seconds]} or longer")
    print_table(_table(found))
    errors = sorted(((error, one) for one in found for error in one.errors), key=lambda entry: -entry[0].count)
    if not errors:
        return
    print_line()
    table = new_table("errors", "kind", "error", numbers=("errors",), elastic=("error",))
    for error, one in errors[:SHOWN_ERRORS]:
        table.add_row(str(error.count), one.kind, short(f"{error.type}: {error.message}"))
    print_table(table)


def _table(found: Sequence[Statistics]) -> Table:
    headings = ("accepted", "started", "failed", "per s", "wait p95", "run p50", "run p95")
    table = new_table(
        *("kind", "queue", *headings, "starts"),
        numbers=headings,
        dispensable=("accepted", "run p50", "queue", "per s", "wait p95", "starts", "run p95"),
    )
    for one in found:
        failed = sum(one.failed.values())
        table.add_row(
            one.kind,
            one.queue,
            str(one.accepted),
            str(one.started),
            Text(str(failed), style="red" if failed else ""),
            f"{_rate(one):.3g}",
            _time(one.wait, 0.95),
            _time(one.run, 0.5),
            _time(one.run, 0.95),
            bars(one, SHOWN_BARS),
        )
    return table


def _time(histogram: Histogram, part: float) -> str:
    found = histogram.percentile(part)
    return "-" if found is None else duration(float(f"{found:.2g}"))


def bars(one: Statistics, number: int) -> str:
    """The starts over time, as this number of bars. An empty part of the time is a space."""
    sums = [0] * number
    for point in one.points:
        sums[_bar_index(point.at, one.since, one.until, number)] += point.started
    highest = max(sums, default=0)
    return "".join(" " if not value else BARS[(value * len(BARS) - 1) // highest] for value in sums)


def _bar_index(at: datetime, since: datetime, until: datetime, number: int) -> int:
    part = (at - since) / (until - since) if until > since else 0.0
    return min(max(int(part * number), 0), number - 1)
