"""The page of schedules: when each fires next, what it did, and why it does not fire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from synergon.model.lifecycle import State
from synergon.web import schedule_routes
from synergon.web.dashboard.pages import Page, asked, page
from synergon.web.dashboard.text import interval_option, relative
from synergon.web.routes import ApiCall

MOST_OCCURRENCES: Final = 8
PRUNED: Final = "pruned"
"""What the strip shows for a task that is not in the database any more."""


async def list_schedules(call: ApiCall) -> Page:
    """The page of schedules."""
    found = await asked(call, schedule_routes.list_schedules)
    upcoming = await asked(
        call, schedule_routes.list_occurrences, schedule_routes.UpcomingQuery(number=MOST_OCCURRENCES)
    )
    schedules = found["schedules"]
    states = await _states(call, schedules)
    return Page(
        "schedules.html",
        "Schedules",
        {
            "schedules": [
                {**schedule, "strip": _strip(schedule["past"], states), "fields": _fields(schedule)}
                for schedule in schedules
            ],
            "states_of": states,
            "occurrences": upcoming["occurrences"],
        },
    )


async def _states(call: ApiCall, schedules: Iterable[Mapping[str, Any]]) -> dict[int, State]:
    """The states of the tasks that the schedules have created lately."""
    ids = {schedule["last_task_id"] for schedule in schedules}
    ids |= {one.get("task_id") for schedule in schedules for one in schedule["past"]}
    tasks = await call.engine._store.get(sorted(ids - {None}))
    return {task.id: task.state for task in tasks if task is not None}


def _strip(past: Iterable[Mapping[str, Any]], states: Mapping[int, State]) -> dict[str, Any]:
    """The latest occurrences as marks, and a sentence about them."""
    marks, counts = [], Counter[str]()
    for one in past:
        task_id, number = one.get("task_id"), one.get("count", 1)
        became = one["outcome"] if task_id is None else str(states.get(task_id, PRUNED))
        counts[became] += number
        words = [f"{number} {became}" if number > 1 else became, relative(one["at"]), one.get("reason")]
        if task_id is not None:
            words.append(f"task {task_id}")
        marks.append({"state": became, "task_id": task_id, "label": ", ".join(word for word in words if word)})
    return {"marks": marks, "summary": ", ".join(f"{number} {became}" for became, number in counts.most_common())}


def _fields(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the form that changes a schedule."""
    return {
        "when": "every" if schedule["cron"] is None else "cron",
        "cron": schedule["cron"],
        "every": interval_option(schedule["every"]),
        "tz": schedule["tz"],
        "missed": schedule["missed"],
        "overlap": schedule["overlap"],
        "jitter": interval_option(schedule["jitter"]),
    }


PAGES: Final = (page("/schedules", list_schedules),)
