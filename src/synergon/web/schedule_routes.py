"""The routes of schedules: list, show, explain, pause, resume, run, change and delete them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from synergon.explain.explanation import ScheduleExplanation
from synergon.model.schedules import Missed, Overlap, ScheduleRecord
from synergon.web import documents
from synergon.web.access import Role
from synergon.web.inputs import Moment
from synergon.web.redaction import hide_secrets
from synergon.web.routes import ApiCall, Route


def _document(call: ApiCall, record: ScheduleRecord) -> dict[str, Any]:
    arguments = call.redactor.arguments(record.kind, record.arguments)
    return record.as_dict() | {"arguments": arguments}


async def list_schedules(call: ApiCall) -> Any:
    """All schedules: when each fires next, and what it did."""
    return {"schedules": [_document(call, record) for record in await call.engine.schedules.list()]}


async def show_schedule(call: ApiCall) -> Any:
    """One schedule."""
    return _document(call, await call.engine.schedules.get(call.path["name"]))


async def explain_schedule(call: ApiCall) -> Any:
    """When a schedule fires next, and why it did not fire or its tasks do not run."""
    return hide_secrets((await call.engine.schedules.explain(call.path["name"])).as_dict())


class UpcomingQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which schedule, and how many of its occurrences are listed."""

    number: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    name: str | None = None


async def list_occurrences(call: ApiCall) -> Any:
    """The next occurrences of all active schedules, or of one, in order."""
    found = await call.engine.schedules.upcoming(call.query.number, name=call.query.name)
    return {"occurrences": [occurrence.as_dict() for occurrence in found]}


async def pause_schedule(call: ApiCall) -> Any:
    """Pause a schedule: its occurrences are skipped until it is resumed."""
    name = call.path["name"]
    return {"name": name, "changed": await call.engine.schedules.pause(name)}


async def resume_schedule(call: ApiCall) -> Any:
    """Resume a schedule from its next occurrence on."""
    name = call.path["name"]
    return {"name": name, "changed": await call.engine.schedules.resume(name)}


async def run_schedule(call: ApiCall) -> Any:
    """Create one more task of a schedule now. Without a task, `reason` says why."""
    run = await call.engine.schedules.run_once(call.path["name"])
    return run.as_dict()


class ScheduleChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The changes of a schedule that was made at run time: `cron` or `every`, like "2h", and how it fires. Null removes
    a bound; a field that is left out stays as it is."""

    cron: str | UnsetType = UNSET
    every: str | float | UnsetType = UNSET
    tz: str | UnsetType = UNSET
    missed: Missed | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    jitter: str | float | UnsetType = UNSET
    starts_at: Moment | UnsetType | None = UNSET
    ends_at: Moment | UnsetType | None = UNSET


async def update_schedule(call: ApiCall) -> Any:
    """Change when and how a schedule that was made at run time fires. A schedule that code declares is changed in the
    code."""
    given: Any = {name: value for name, value in msgspec.structs.asdict(call.body).items() if value is not UNSET}
    return _document(call, await call.engine.schedules._update_as_operator(call.path["name"], **given))


async def delete_schedule(call: ApiCall) -> Any:
    """Delete a schedule; its tasks remain. A schedule that code declares is stored again when a worker with that code
    starts."""
    await call.engine.schedules.delete(call.path["name"])
    return {"deleted": 1}


_NAMED: Final = "/schedules/{name:path}"
_READ: Final[dict[str, Any]] = {"method": "GET", "role": Role.READ, "problems": (404,)}
_CHANGE: Final[dict[str, Any]] = {"method": "POST", "role": Role.OPERATE, "problems": (404,)}

ROUTES: Final = (
    Route(method="GET", role=Role.READ, path="/schedules", handle=list_schedules, answer=documents.Schedules),
    Route(**_READ, path="/occurrences", handle=list_occurrences, query=UpcomingQuery, answer=documents.Occurrences),
    Route(**_CHANGE, path=f"{_NAMED}/pause", handle=pause_schedule, answer=documents.IsChanged),
    Route(**_CHANGE, path=f"{_NAMED}/resume", handle=resume_schedule, answer=documents.IsChanged),
    Route(**_CHANGE, path=f"{_NAMED}/run", handle=run_schedule, answer=documents.ScheduleRunDocument),
    Route(**_READ, path=f"{_NAMED}/explanation", handle=explain_schedule, answer=ScheduleExplanation),
    Route(**_READ, path=_NAMED, handle=show_schedule, answer=documents.ScheduleDocument),
    Route(**_CHANGE, path=_NAMED, handle=update_schedule, body=ScheduleChange, answer=documents.ScheduleDocument),
    Route(
        method="DELETE",
        role=Role.OPERATE,
        path=_NAMED,
        handle=delete_schedule,
        answer=documents.Deleted,
        problems=(404,),
    ),
)
