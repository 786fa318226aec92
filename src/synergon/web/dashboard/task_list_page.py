"""The page of tasks: filters that are part of the URL, pages by cursor, and operations on all that match."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from synergon.model.lifecycle import FINAL, State
from synergon.web import kind_routes, task_routes
from synergon.web.dashboard.pages import Page, asked, page
from synergon.web.routes import ApiCall

PAGE_SIZE: Final = 50
AGES: Final = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}


class TasksQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters of the page. An empty text is none."""

    state: tuple[State, ...] = ()
    kind: str = ""
    queue: str = ""
    tag: str = ""
    key: str = ""
    title: str = ""
    search: str = ""
    since: Literal["", "1h", "1d", "7d"] = ""
    """How long ago the tasks were enqueued at most."""
    after: str = ""

    def parameters(self, **changed: Any) -> list[tuple[str, str]]:
        """The parameters of the URL, with these changes. Others than `after` remain."""
        values = {**msgspec.structs.asdict(self), "after": "", **changed}
        pairs: list[tuple[str, str]] = [("state", str(state)) for state in values.pop("state")]
        return [*pairs, *((name, value) for name, value in values.items() if value)]

    def filters(self, now: datetime) -> dict[str, Any]:
        """The filters, as the HTTP API takes them. The beginning is rounded to a minute."""
        texts = {name: getattr(self, name) for name in ("queue", "tag", "key", "title", "search")}
        found: dict[str, Any] = {name: value for name, value in texts.items() if value}
        if self.state:
            found["state"] = self.state
        if self.kind:
            found["kind"] = (self.kind,)
        if self.since:
            found["enqueued_since"] = (now - AGES[self.since]).replace(second=0, microsecond=0)
        return found


async def list_tasks(call: ApiCall) -> Page:
    """The page of tasks."""
    query: TasksQuery = call.query
    filters = query.filters(datetime.now(UTC))
    listing = task_routes.TaskListQuery(**filters, after=query.after or None, limit=PAGE_SIZE)
    found = await asked(call, task_routes.list_tasks, listing)
    counted = await asked(
        call, task_routes.count_tasks, task_routes.CountsQuery(kind=query.kind or None, queue=query.queue or None)
    )
    kinds = await asked(call, kind_routes.list_kinds)
    return Page(
        "tasks.html",
        "Tasks",
        {
            "query": query,
            "filters": {name: value for name, value in query.parameters() if name != "state"},
            "bulk_filter": msgspec.json.encode(filters).decode(),
            "operations": _operations(query.state),
            "counts": {state: counted["counts"].get(state, 0) for state in State},
            "kinds": [kind["kind"] for kind in kinds["kinds"]],
            "tasks": found["tasks"],
            "next": None if found["next"] is None else query.parameters(after=found["next"]),
            "is_cut": found["is_cut"],
        },
    )


def _operations(states: tuple[State, ...]) -> list[str]:
    """The operations that make sense for tasks of these states."""
    wanted = frozenset(states) or frozenset(State)
    found = ["retry"] if wanted & FINAL and State.SUCCEEDED not in states else []
    found += ["cancel"] if wanted - FINAL else []
    return [*found, *(["delete"] if wanted <= FINAL else [])]


PAGES: Final = (page("/tasks", list_tasks, TasksQuery),)
