"""The pages of flows: a list with progress, and the graph of one flow."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from synergon.flow_run import record_of
from synergon.model.lifecycle import FINAL, State
from synergon.web import flow_routes
from synergon.web.dashboard import flow_graph
from synergon.web.dashboard.pages import Page, asked, page
from synergon.web.problems import Problem
from synergon.web.routes import ApiCall

PAGE_SIZE: Final = 50


class FlowsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters of the list. An empty text is none."""

    name: str = ""
    state: Literal["", "open", "succeeded", "failed", "cancelled"] = ""
    before: int | None = None


class FlowQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the graph is drawn."""

    unfold: int | None = None
    """The first task of the folded box whose tasks are shown."""


async def list_flows(call: ApiCall) -> Page:
    """The list of flows."""
    query: FlowsQuery = call.query
    ended: Any = None if query.state in ("", "open") else query.state
    listing = flow_routes.FlowListQuery(
        name=query.name or None,
        state=ended,
        is_open=True if query.state == "open" else None,
        before=query.before,
        limit=PAGE_SIZE,
    )
    found = await asked(call, flow_routes.list_flows, listing)
    flows = [{**flow, "parts": _parts(flow["counts"])} for flow in found["flows"]]
    return Page("flows.html", "Flows", {"flows": flows, "query": query, "next": found["next"]})


def _parts(counts: dict[str, int]) -> dict[str, Any]:
    """How the bar of a flow is divided, in per cent, and how many of its tasks have ended."""
    total = sum(counts.values()) or 1
    left, parts = 0.0, []
    for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.RUNNING):
        width = counts.get(state, 0) / total * 100
        if width:
            parts.append({"state": state, "left": round(left, 2), "width": round(width, 2)})
            left += width
    return {"parts": parts, "done": sum(counts.get(state, 0) for state in FINAL), "total": sum(counts.values())}


async def show_flow(call: ApiCall) -> Page:
    """The page of one flow, with its graph."""
    flow_id = call.path["flow_id"]
    query: FlowQuery = call.query
    values: dict[str, Any] = {"steps": [], "graph": None, "too_large": None, "unfold": query.unfold}
    try:
        found = await asked(call, flow_routes.show_flow, flow_id=flow_id)
        flow = found["flow"]
        values |= {"steps": found["steps"], "graph": flow_graph.drawn(found["steps"], query.unfold)}
    except Problem as problem:
        if problem.status != 413:
            raise
        flow = (await record_of(call.engine, flow_id)).as_dict()
        values["too_large"] = problem.detail
    return Page("flow.html", f"Flow {flow['name']}", {"flow": {**flow, "parts": _parts(flow["counts"])}, **values})


PAGES: Final = (page("/flows", list_flows, FlowsQuery), page("/flows/{flow_id:int}", show_flow, FlowQuery))
