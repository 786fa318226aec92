"""The page of tasks: filters that are part of the URL, pages by cursor, errors in groups, and operations on all that
match."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

import msgspec

from synergon.client.node_overview import read_overviews
from synergon.model.lifecycle import FINAL, State
from synergon.web import error_routes, flow_routes, kind_routes, task_routes
from synergon.web.dashboard.pages import Page, asked, page
from synergon.web.problems import Problem
from synergon.web.routes import ApiCall
from synergon.web.visible_tasks import brief

PAGE_SIZE: Final = 50
MOST_SUGGESTED: Final = 20
"""How many flows are suggested, the newest ones."""
AGES: Final = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
PLAIN: Final = ("queue", "tag", "key", "title", "search", "error")
"""The filters that the HTTP API takes as they are."""
MOMENTS: Final = {"begin": "enqueued_since", "until": "enqueued_until"}
ORDERS: Final[dict[str, dict[str, Any]]] = {
    "": {},
    "oldest": {"ascending": True},
    "due": {"sort": "due", "ascending": True},
    "end": {"sort": "end"},
}
"""The orders of the list: newest first, oldest first, next due first, last ended first."""

OptionalId = Annotated[str, msgspec.Meta(pattern="^([1-9][0-9]{0,18})?$")]


class TasksQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters of the page. An empty text is none."""

    state: tuple[State, ...] = ()
    kind: str = ""
    queue: str = ""
    tag: str = ""
    key: str = ""
    title: str = ""
    search: str = ""
    flow: OptionalId = ""
    parent: OptionalId = ""
    node: str = ""
    """The name or the id of a node."""
    error: str = ""
    """The fingerprint of an error."""
    since: Literal["", "1h", "1d", "7d"] = ""
    """How long ago the tasks were enqueued at most."""
    begin: str = ""
    """Since which moment the tasks were enqueued, in UTC without an offset."""
    until: str = ""
    order: Literal["", "oldest", "due", "end"] = ""
    view: Literal["", "errors"] = ""
    after: str = ""

    @property
    def states(self) -> tuple[State, ...]:
        """The states of the tasks that are shown; none means all."""
        return self.state or ((State.FAILED,) if self.view else ())

    def parameters(self, **changed: Any) -> list[tuple[str, str]]:
        """The parameters of the URL, with the changes in `changed`. `after` is removed, unless it is one of them."""
        values = {**msgspec.structs.asdict(self), "after": "", **changed}
        pairs: list[tuple[str, str]] = [("state", str(state)) for state in values.pop("state")]
        return [*pairs, *((name, value) for name, value in values.items() if value)]

    def filters(self, now: datetime, nodes: dict[str, str]) -> dict[str, Any]:
        """The filters, as the HTTP API takes them. `nodes` are the names of nodes by id. The beginning of an age is
        rounded to a minute."""
        found: dict[str, Any] = {name: value for name in PLAIN if (value := getattr(self, name))}
        found |= {name: int(value) for name in ("flow", "parent") if (value := getattr(self, name))}
        if self.state:
            found["state"] = self.state
        if self.kind:
            found["kind"] = (self.kind,)
        if self.node:
            found["node"] = tuple(node_id for node_id, name in nodes.items() if name == self.node) or (self.node,)
        if self.since:
            found["enqueued_since"] = (now - AGES[self.since]).replace(second=0, microsecond=0)
        return found | {
            name: _moment(field, value) for field, name in MOMENTS.items() if (value := getattr(self, field))
        }


def _moment(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Problem(400, f"{name} takes a moment like 2026-12-24T18:00, got {text!r}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


async def list_tasks(call: ApiCall) -> Page:
    """The page of tasks."""
    query: TasksQuery = call.query
    nodes = {node.id: node.name for node in await read_overviews(call.engine._store, with_waiting=False)}
    filters = query.filters(datetime.now(UTC), nodes)
    counted = await call.engine._store.counts()
    kinds = await asked(call, kind_routes.list_kinds)
    flows = await asked(call, flow_routes.list_flows, flow_routes.FlowListQuery(limit=MOST_SUGGESTED))
    values = await (_errors(call, filters) if query.view else _tasks(call, filters))
    given = {name: value for name, value in query.parameters() if name not in ("state", "view", "order")}
    return Page(
        "tasks.html",
        "Tasks",
        {
            "query": query,
            "filters": given,
            "has_rare_filter": any(
                name not in ("search", "kind", "queue", "since", "error", "parent") for name in given
            ),
            "bulk_filter": _json(filters),
            "only": _only(query, values),
            "operations": _operations(query.state),
            "shown_states": query.states,
            "counts": {
                state: sum(
                    number
                    for (queue, kind, its_state), number in counted.items()
                    if its_state is state and query.kind in ("", kind) and query.queue in ("", queue)
                )
                for state in State
            },
            "kinds": [kind["kind"] for kind in kinds["kinds"]],
            "queues": sorted({queue for queue, _, _ in counted}),
            "nodes": sorted(set(nodes.values())),
            "flows": flows["flows"],
            **values,
        },
        refresh_seconds=10 if query.view else 2,
    )


async def _tasks(call: ApiCall, filters: dict[str, Any]) -> dict[str, Any]:
    """One page of the tasks that match."""
    query: TasksQuery = call.query
    listing = task_routes.TaskListQuery(**filters, **ORDERS[query.order], after=query.after or None, limit=PAGE_SIZE)
    found = await task_routes.read_page(replace(call, query=listing), lambda task: call.redactor.task(brief(task)))
    return {
        "tasks": found["tasks"],
        "tags": sorted({tag for task in found["tasks"] for tag in task["tags"]}),
        "next": None if found["next"] is None else query.parameters(after=found["next"]),
        "is_cut": found["is_cut"],
    }


async def _errors(call: ApiCall, filters: dict[str, Any]) -> dict[str, Any]:
    """The tasks that match, grouped by error; failed ones, unless states are given."""
    query: TasksQuery = call.query
    found = await asked(
        call, error_routes.list_errors, error_routes.ErrorListQuery(**filters | {"state": query.states})
    )
    return {
        "tags": [],
        "grouped": found["grouped"],
        "is_cut": found["is_cut"],
        "most": error_routes.MOST_GROUPED,
        "errors": [
            error
            | {
                "parameters": query.parameters(view="", order="", state=query.states, error=error["fingerprint"]),
                "bulk_filter": _json(filters | {"state": query.states, "error": error["fingerprint"]}),
            }
            for error in found["errors"]
        ],
    }


def _only(query: TasksQuery, values: dict[str, Any]) -> list[dict[str, Any]]:
    """The filters in use that have no field in the form: each as text, with the parameters of the URL without it."""
    found = []
    if query.parent:
        found.append({"text": f"Created by task {query.parent}", "parameters": query.parameters(parent="")})
    if query.error:
        errors = [task["errors"][-1] for task in values.get("tasks", ()) if task["errors"]]
        text = f"{errors[0]['type']}: {errors[0]['message']}" if errors else query.error
        found.append({"text": f"Like {text}", "parameters": query.parameters(error="")})
    return found


def _json(filters: dict[str, Any]) -> str:
    return msgspec.json.encode(filters).decode()


def _operations(states: tuple[State, ...]) -> list[str]:
    """The operations that make sense for tasks of these states."""
    wanted = frozenset(states) or frozenset(State)
    found = ["retry"] if wanted & FINAL and State.SUCCEEDED not in states else []
    found += ["cancel"] if wanted - FINAL else []
    return [*found, *(["delete"] if wanted <= FINAL else [])]


PAGES: Final = (page("/tasks", list_tasks, TasksQuery),)
