"""The statistics of a period, read once for all viewers.

With many kinds, a period has tens of thousands of rows. A page does not wait for them if there are recent figures: it
shows these, and new ones are read in the background.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import Final

from synergon.engine import Engine
from synergon.model.task_statistics import Statistics
from synergon.web.dashboard.charts import Since
from synergon.web.routes import ApiCall

FRESH_SECONDS: Final[dict[Since, float]] = {"1h": 10, "1d": 60, "7d": 300}
"""Figures of a period are read again when they are older than this."""
SHOWN_SECONDS: Final[dict[Since, float]] = {"1h": 30, "1d": 180, "7d": 900}
"""Figures that are older than this are not shown. A page that is open asks more often."""


@dataclass(frozen=True, slots=True)
class _Figures:
    read_at: float
    found: list[Statistics]


class RecentStatistics:
    """Keeps the figures of each period for the pages of one dashboard."""

    def __init__(self) -> None:
        self._known: dict[Since, _Figures] = {}
        self._renewals: dict[Since, asyncio.Task[list[Statistics]]] = {}

    async def read(self, engine: Engine, since: Since) -> list[Statistics]:
        """The statistics of the period, not older than `SHOWN_SECONDS`."""
        known = self._known.get(since)
        age = float("inf") if known is None else monotonic() - known.read_at
        if known is not None and age < FRESH_SECONDS[since]:
            return known.found
        renewal = self._renewal(engine, since)
        if known is not None and age < SHOWN_SECONDS[since]:
            return known.found
        return await asyncio.shield(renewal)

    def _renewal(self, engine: Engine, since: Since) -> asyncio.Task[list[Statistics]]:
        """The read that is under way, or a new one."""
        found = self._renewals.get(since)
        if found is None or found.done():
            found = self._renewals[since] = asyncio.create_task(self._renew(engine, since))
            found.add_done_callback(lambda done: done.cancelled() or done.exception())  # the next page reports it
        return found

    async def _renew(self, engine: Engine, since: Since) -> list[Statistics]:
        found = await engine.statistics(since=since)
        self._known[since] = _Figures(monotonic(), found)
        return found

    async def close(self) -> None:
        """End the reads that are under way."""
        for renewal in self._renewals.values():
            renewal.cancel()
        await asyncio.gather(*self._renewals.values(), return_exceptions=True)


async def recent_statistics(call: ApiCall, since: Since) -> list[Statistics]:
    """The statistics of the period, as the dashboard of this request knows them."""
    recent: RecentStatistics = call.request.app.state.recent_statistics
    return await recent.read(call.engine, since)
