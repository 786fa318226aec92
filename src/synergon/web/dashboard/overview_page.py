"""The first page: what needs attention, how much waits, runs and fails, and the health of nodes and database."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from synergon.model.lifecycle import State
from synergon.web import cluster_routes, task_routes
from synergon.web.dashboard import charts
from synergon.web.dashboard.pages import Page, asked, page
from synergon.web.dashboard.recent_statistics import recent_statistics
from synergon.web.routes import ApiCall

MOST_RUNNING: Final = 8
MOST_FAILING: Final = 6
MOST_WAITING: Final = 5


class OverviewQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The period that the figures are about."""

    since: charts.Since = "1h"


async def show_overview(call: ApiCall) -> Page:
    """The first page."""
    query: OverviewQuery = call.query
    began = time.perf_counter()
    status = await asked(call, cluster_routes.show_status)
    latency = time.perf_counter() - began
    running = await asked(
        call, task_routes.list_tasks, task_routes.TaskListQuery(state=(State.RUNNING,), limit=MOST_RUNNING)
    )
    counted = await asked(call, task_routes.count_tasks, task_routes.CountsQuery())
    statistics = await recent_statistics(call, query.since)
    return Page(
        "overview.html",
        "Overview",
        {
            "status": status,
            "latency": latency,
            "since": query.since,
            "periods": charts.PERIODS,
            "counts": {state: counted["counts"].get(state, 0) for state in State},
            "figures": charts.Figures.of(statistics),
            "chart": charts.chart(statistics, query.since, datetime.now(UTC)),
            "running": running["tasks"],
            "waiting": _waiting(status),
            "failing": charts.failing(statistics, call.redactor, MOST_FAILING),
        },
        refresh_seconds=5,
    )


def _waiting(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The kinds whose oldest ready task has been due for the longest time."""
    rows = [
        {"queue": queue["name"], "is_paused": queue["is_paused"], **kind}
        for queue in status["queues"]
        for kind in queue["kinds"]
    ]
    return sorted(rows, key=lambda row: -row["oldest_ready_seconds"])[:MOST_WAITING]


PAGES: Final = (page("/", show_overview, OverviewQuery),)
