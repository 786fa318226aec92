"""The routes of flows and groups: list, show, cancel, and retry flows."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from synergon.client.operations import check_id
from synergon.errors import TaskNotFound
from synergon.flow_run import record_of, steps_of, tasks_of
from synergon.model.flows import FlowPage, FlowRecord
from synergon.model.groups import GroupRecord
from synergon.web import documents
from synergon.web.access import Role
from synergon.web.problems import Problem
from synergon.web.routes import ApiCall, Route
from synergon.web.task_routes import Cancel

MOST_STEPS: Final = 2000
"""How many tasks of a flow or group one answer has."""


class FlowListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which flows are listed."""

    name: str | None = None
    state: Literal["succeeded", "failed", "cancelled"] | None = None
    is_open: bool | None = None
    before: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 100


async def list_flows(call: ApiCall) -> Any:
    """List flows, newest first. `next` is the `before` of the following page."""
    page = await call.engine.flows.list(**msgspec.structs.asdict(call.query))
    return page.as_dict()


async def show_flow(call: ApiCall) -> Any:
    """One flow, with its tasks and what they depend on."""
    flow = await _flow(call)
    _check_size(flow.counts)
    steps = await steps_of(call.engine, flow.id)
    return {
        "flow": flow.as_dict(),
        "steps": [
            {"task": call.redactor.task(step.task), "needs": [need.as_dict() for need in step.needs]} for step in steps
        ],
    }


async def _flow(call: ApiCall) -> FlowRecord:
    flow_id = call.path["flow_id"]
    try:
        return await record_of(call.engine, check_id(flow_id))
    except TaskNotFound as error:
        raise Problem(404, str(error), flow_id=flow_id) from error


def _check_size(counts: dict[Any, int]) -> None:
    number = sum(counts.values())
    if number > MOST_STEPS:
        raise Problem(413, f"it has {number} tasks, more than an answer of {MOST_STEPS}; list its tasks in the code")


async def cancel_flow(call: ApiCall) -> Any:
    """Cancel all live tasks of a flow, in one transaction."""
    flow = await _flow(call)
    action = await call.engine._control.cancel_group(flow.id, call.body.why)
    return {"id": flow.id, "outcome": action.outcome}


async def retry_flow(call: ApiCall) -> Any:
    """Run the tasks of a flow that failed or were cancelled again, in one transaction."""
    flow = await _flow(call)
    action = await call.engine._control.retry_flow(flow.id)
    if action.is_rejected:
        raise Problem(409, f"flow {flow.id} cannot be retried: {action.outcome}")
    return {"id": flow.id, "outcome": action.outcome}


async def show_group(call: ApiCall) -> Any:
    """One group, with its tasks."""
    group = await _group(call)
    _check_size(group.counts)
    tasks = await tasks_of(call.engine, group.id)
    return {"group": group.as_dict(), "tasks": [call.redactor.task(task) for task in tasks]}


async def cancel_group(call: ApiCall) -> Any:
    """Cancel all live tasks of a group, in one transaction."""
    group = await _group(call)
    action = await call.engine._control.cancel_group(group.id, call.body.why)
    return {"id": group.id, "outcome": action.outcome}


async def _group(call: ApiCall) -> GroupRecord:
    group_id = check_id(call.path["group_id"])
    (found,) = await call.engine._store.groups([group_id])
    if found is None or found.is_flow:
        raise Problem(404, f"there is no group {group_id}: it never existed, or it was pruned", group_id=group_id)
    return found


_READ: Final[dict[str, Any]] = {"method": "GET", "role": Role.READ}
_CHANGE: Final[dict[str, Any]] = {"method": "POST", "role": Role.OPERATE, "answer": documents.Outcome}

ROUTES: Final = (
    Route(**_READ, path="/flows", handle=list_flows, query=FlowListQuery, answer=FlowPage),
    Route(**_READ, path="/flows/{flow_id:int}", handle=show_flow, answer=documents.FlowDocument, problems=(404, 413)),
    Route(**_CHANGE, path="/flows/{flow_id:int}/cancel", handle=cancel_flow, body=Cancel, problems=(404,)),
    Route(**_CHANGE, path="/flows/{flow_id:int}/retry", handle=retry_flow, problems=(404, 409)),
    Route(
        **_READ, path="/groups/{group_id:int}", handle=show_group, answer=documents.GroupDocument, problems=(404, 413)
    ),
    Route(**_CHANGE, path="/groups/{group_id:int}/cancel", handle=cancel_group, body=Cancel, problems=(404,)),
)
