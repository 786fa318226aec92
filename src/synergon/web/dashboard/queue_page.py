"""The page of queues and kinds: depth, rates, percentiles and failures of a period, and the pause of queues."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from synergon.model.lifecycle import State
from synergon.model.task_statistics import Statistics
from synergon.web import cluster_routes, kind_routes
from synergon.web.dashboard import charts
from synergon.web.dashboard.pages import Page, asked, page
from synergon.web.dashboard.recent_statistics import recent_statistics
from synergon.web.dashboard.text import plural
from synergon.web.routes import ApiCall

PER_SECOND: Final = 1.0


class QueuesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The period that the figures are about."""

    since: charts.Since = "1h"


async def list_queues(call: ApiCall) -> Page:
    """The page of queues and kinds."""
    query: QueuesQuery = call.query
    status = await asked(call, cluster_routes.show_status)
    kinds = (await asked(call, kind_routes.list_kinds))["kinds"]
    by_kind: defaultdict[str, list[Statistics]] = defaultdict(list)
    by_queue: defaultdict[str, list[Statistics]] = defaultdict(list)
    for one in await recent_statistics(call, query.since):
        by_kind[one.kind].append(one)
        by_queue[one.queue].append(one)
    ages = {kind["kind"]: kind["oldest_ready_seconds"] for queue in status["queues"] for kind in queue["kinds"]}
    spans = charts.spans_of(query.since, datetime.now(UTC))
    return Page(
        "queues.html",
        "Queues and kinds",
        {
            "since": query.since,
            "periods": charts.PERIODS,
            "columns": list(State),
            "queues": [
                {
                    **queue,
                    "depths": charts.sparkline(charts.depths_of(by_queue[queue["name"]], query.since), spans),
                    "depth": max(charts.depths_of(by_queue[queue["name"]], query.since).values(), default=0),
                }
                for queue in status["queues"]
            ],
            "kinds": [
                _kind(kind, by_kind[kind["kind"]], query.since, spans) | {"oldest": ages.get(kind["kind"])}
                for kind in kinds
            ],
        },
        refresh_seconds=5,
    )


def _kind(kind: dict[str, Any], found: list[Statistics], since: charts.Since, spans: range) -> dict[str, Any]:
    """A kind, with its figures, its rate and a line of its starts."""
    figures = charts.Figures.of(found)
    return {
        **kind,
        "figures": figures,
        "rate": rate_text(figures.started, charts.BARS[since] * len(spans)),
        "starts": charts.sparkline(charts.starts(found, since), spans),
    }


def rate_text(count: int, seconds: int) -> str:
    """The rate of starts as text: per second, minute or hour, whichever first gives at least one. Below one per hour,
    the number of starts."""
    if not count:
        return "–"
    per_second = count / seconds
    for unit, length in (("s", 1), ("min", 60), ("h", 3600)):
        if per_second * length >= PER_SECOND:
            return f"{per_second * length:.3g} / {unit}"
    return f"{plural(count, 'start')}"


PAGES: Final = (page("/queues", list_queues, QueuesQuery),)
