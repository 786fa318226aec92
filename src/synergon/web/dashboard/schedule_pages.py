"""The page of schedules: when each fires next, what it did, and why it does not fire."""

from __future__ import annotations

from typing import Final

from synergon.web import schedule_routes
from synergon.web.dashboard.pages import Page, asked, page
from synergon.web.routes import ApiCall

MOST_OCCURRENCES: Final = 8


async def list_schedules(call: ApiCall) -> Page:
    """The page of schedules."""
    found = await asked(call, schedule_routes.list_schedules)
    upcoming = await asked(
        call, schedule_routes.list_occurrences, schedule_routes.UpcomingQuery(number=MOST_OCCURRENCES)
    )
    schedules = found["schedules"]
    last = [schedule["last_task_id"] for schedule in schedules if schedule["last_task_id"] is not None]
    tasks = await call.engine._store.get(last) if last else []
    return Page(
        "schedules.html",
        "Schedules",
        {
            "schedules": schedules,
            "last_states": {task.id: task.state for task in tasks if task is not None},
            "occurrences": upcoming["occurrences"],
        },
    )


PAGES: Final = (page("/schedules", list_schedules),)
