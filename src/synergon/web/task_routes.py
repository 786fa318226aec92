"""The routes of tasks: list, show, explain, and change one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from synergon.client import bulk
from synergon.client.operations import check_due, check_id, listing_of
from synergon.explain.explanation import Explanation
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Moved
from synergon.options.durations import microseconds, seconds
from synergon.options.options import check_meta, check_priority
from synergon.web import documents
from synergon.web.access import Role
from synergon.web.inputs import Moment
from synergon.web.problems import Problem
from synergon.web.redaction import is_secret_name
from synergon.web.routes import ApiCall, Route
from synergon.web.visible_tasks import CONTENT_FILTERS, last_error, matches

PAGE: Final = 200
"""The largest number of tasks on a page."""

SEARCHED_PAGES: Final = 20
"""How many pages one request reads at most, if the store cannot apply all of its filters."""

Id = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE)]


# ---------------------------------------------------------------- read


class TaskConditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters that a listing and a bulk operation have in common."""

    state: tuple[State, ...] | None = None
    kind: tuple[str, ...] | None = None
    queue: str | None = None
    tag: str | None = None
    key: str | None = None
    title: str | None = None
    search: str | None = None
    flow: Id | None = None
    parent: Id | None = None
    node: tuple[str, ...] | None = None
    error: str | None = None
    """The fingerprint of the last error, as `/errors` has it."""
    enqueued_since: Moment | None = None
    enqueued_until: Moment | None = None
    started_since: Moment | None = None
    started_until: Moment | None = None
    finished_since: Moment | None = None
    finished_until: Moment | None = None


class TaskListQuery(TaskConditions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters, the order and the page of a listing."""

    meta: tuple[str, ...] | None = None
    """Each is `name=value`; the value is JSON, or else a text."""
    sort: Literal["id", "due", "end"] = "id"
    ascending: bool = False
    after: str | None = None
    limit: Limit = 100


async def list_tasks(call: ApiCall) -> Any:
    """List tasks, newest first. `next` is the cursor of the following page."""
    return await read_page(call, call.redactor.task)


async def read_page(call: ApiCall, show: Callable[[TaskRecord], dict[str, Any]]) -> Any:
    """One page of the tasks that match, each as the document that `show` returns."""
    given = {name: value for name, value in msgspec.structs.asdict(call.query).items() if value is not None}
    if "meta" in given:
        given["meta"] = dict(parse_meta(word) for word in given["meta"])
    reject_secret_names(given.get("meta"))
    error = given.pop("error", None)
    wanted = take_visible_filters(call, given)
    if wanted or error is not None:
        return await _list_visible(call, given, wanted, error, call.redactor.task if wanted else show)
    page = await call.engine.tasks(**given)
    return {"tasks": [show(task) for task in page], "next": page.next, "is_cut": page.is_cut}


def take_visible_filters(call: ApiCall, given: dict[str, Any]) -> dict[str, Any]:
    """Remove the filters over contents from `given` and return them, unless the caller is an admin. They are compared
    with what the caller sees. The store would compare hidden values, and its cursor and the time of its answer would
    reveal these letter by letter. Raises OptionError if a filter is wrong."""
    listing_of(given)
    if call.user.role.allows(Role.ADMIN):
        return {}
    return {name: given.pop(name) for name in CONTENT_FILTERS if name in given}


async def _list_visible(
    call: ApiCall,
    given: dict[str, Any],
    wanted: Mapping[str, Any],
    error: str | None,
    show: Callable[[TaskRecord], dict[str, Any]],
) -> Any:
    """The tasks whose visible values match, and whose last error has this fingerprint."""
    limit, found, after = given.pop("limit"), list[dict[str, Any]](), given.pop("after", None)
    for _ in range(SEARCHED_PAGES):
        page = await call.engine.tasks(**given, after=after, limit=limit - len(found))
        alike = (task for task in page if error is None or last_error(call.redactor, task).fingerprint == error)
        tasks = [show(task) for task in alike]
        found += [task for task in tasks if matches(task, wanted)]
        after = page.next
        if after is None or len(found) == limit:
            break
    return {"tasks": found, "next": after, "is_cut": after is not None and len(found) < limit}


def parse_meta(word: str) -> tuple[str, Any]:
    """The name and the value of a filter over metadata."""
    name, sign, text = word.partition("=")
    if not sign:
        raise Problem(400, f"meta takes name=value, like customer=42, got {word!r}")
    try:
        return name, msgspec.json.decode(text)
    except msgspec.DecodeError:  # a word without quotes is a text
        return name, text


def reject_secret_names(meta: Mapping[str, Any] | None) -> None:
    """Raise Problem for a filter over metadata whose values are hidden."""
    for name in meta or ():
        if is_secret_name(name):
            raise Problem(403, f"meta {name!r} is hidden, so tasks cannot be found by it")


async def show_task(call: ApiCall) -> Any:
    """One task, with arguments, result, errors and attempts."""
    return call.redactor.task(await call.engine.get(call.path["task_id"]))


async def explain_task(call: ApiCall) -> Any:
    """Why a task waits, node by node, how it runs, or how it ended."""
    explanation = await call.engine.explain(call.path["task_id"])
    return call.redactor.about_task(await call.engine.get(explanation.id), explanation.as_dict())


class CountsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks are counted."""

    kind: str | None = None
    queue: str | None = None
    exact: bool = False


async def count_tasks(call: ApiCall) -> Any:
    """The number of tasks in each state."""
    query: CountsQuery = call.query
    found = await call.engine.counts(kind=query.kind, queue=query.queue, exact=query.exact)
    return {"counts": dict(found), "counted_at": found.counted_at}


# ---------------------------------------------------------------- change one


class Cancel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a task, or the tasks of a flow or group, are cancelled."""

    why: str | None = None


class Reschedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the task is due: after a delay, or at a moment. Give one of them."""

    delay: str | float | None = None
    run_at: Moment | None = None


class Priority(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new priority."""

    priority: Number


class MoreTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much more time the running attempt gets."""

    extend: str | float


class MetaValues(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new values by name. Null removes a name; others remain."""

    values: dict[str, Any]


async def cancel_task(call: ApiCall) -> Any:
    """Cancel a task: at once if it does not run, otherwise as soon as its function ends."""
    return await _change(call, bulk.cancel(None), call.engine._control.cancel([_id(call)], call.body.why))


async def retry_task(call: ApiCall) -> Any:
    """Run an ended task again, under its id."""
    return await _change(call, bulk.retry(), call.engine._control.retry([_id(call)]))


async def delete_task(call: ApiCall) -> Any:
    """Delete a task that does not run."""
    await _moved(bulk.delete(), call, call.engine._control.delete([_id(call)]))
    return {"deleted": 1}


async def reschedule_task(call: ApiCall) -> Any:
    """Change when a scheduled or ready task is due."""
    delay, run_at = check_due(call.body.delay, call.body.run_at)
    changing = call.engine._control.reschedule([_id(call)], delay=delay, run_at=run_at)
    return await _change(call, bulk.reschedule(delay, run_at), changing)


async def prioritize_task(call: ApiCall) -> Any:
    """Change the priority of a task that has not started."""
    priority = check_priority(call.body.priority)
    return await _change(call, bulk.set_priority(priority), call.engine._control.set_priority([_id(call)], priority))


async def extend_task(call: ApiCall) -> Any:
    """Give the running attempt of a task more time. Extensions add up."""
    extra = microseconds(seconds(call.body.extend, "extend", positive=True))
    (moved,) = await call.engine._control.extend_timeout([_id(call)], extra)
    if not moved.done:
        raise _refused(moved.id, moved.state, f"task {moved.id} is {moved.state}; only a running task gets more time")
    call.engine._bulk.announce([moved])
    return await show_task(call)


async def update_meta(call: ApiCall) -> Any:
    """Change the metadata of a task, by name. Null removes a name; others remain."""
    check_meta(call.body.values)
    (moved,) = await call.engine._control.update_meta([_id(call)], call.body.values)
    if not moved.done:
        raise _refused(moved.id, None, f"there is no task {moved.id}")
    return await show_task(call)


def _id(call: ApiCall) -> int:
    return check_id(call.path["task_id"])


async def _change(call: ApiCall, operation: bulk.BulkOperation, changing: Awaitable[list[Moved]]) -> Any:
    """Change one task, and answer with the task after it."""
    await _moved(operation, call, changing)
    return await show_task(call)


async def _moved(operation: bulk.BulkOperation, call: ApiCall, changing: Awaitable[list[Moved]]) -> None:
    (moved,) = await changing
    if not moved.done:
        raise _refused(moved.id, moved.state, operation.failure_text(moved), moved.key_holder)
    call.engine._bulk.announce([moved])


def _refused(task_id: int, state: State | None, detail: str, key_holder: int | None = None) -> Problem:
    more: dict[str, Any] = {"task_id": task_id}
    if state is not None:
        more["state"] = state
    if key_holder is not None:
        more["key_holder"] = key_holder
    return Problem(404 if state is None else 409, detail, **more)


# ---------------------------------------------------------------- the table

_TASK: Final = "/tasks/{task_id:int}"
_CHANGE: Final[dict[str, Any]] = {"method": "POST", "role": Role.OPERATE, "answer": documents.TaskDocument}
_READ: Final[dict[str, Any]] = {"method": "GET", "role": Role.READ}

ROUTES: Final = (
    Route(**_READ, path="/tasks", handle=list_tasks, query=TaskListQuery, answer=documents.TaskList),
    Route(**_READ, path="/counts", handle=count_tasks, query=CountsQuery, answer=documents.CountsDocument),
    Route(**_READ, path=_TASK, handle=show_task, answer=documents.TaskDocument, problems=(404,)),
    Route(**_READ, path=f"{_TASK}/explanation", handle=explain_task, answer=Explanation, problems=(404,)),
    Route(
        method="DELETE",
        role=Role.OPERATE,
        path=_TASK,
        handle=delete_task,
        answer=documents.Deleted,
        problems=(404, 409),
    ),
    Route(**_CHANGE, path=f"{_TASK}/cancel", handle=cancel_task, body=Cancel, problems=(404, 409)),
    Route(**_CHANGE, path=f"{_TASK}/retry", handle=retry_task, problems=(404, 409)),
    Route(**_CHANGE, path=f"{_TASK}/reschedule", handle=reschedule_task, body=Reschedule, problems=(404, 409)),
    Route(**_CHANGE, path=f"{_TASK}/priority", handle=prioritize_task, body=Priority, problems=(404, 409)),
    Route(**_CHANGE, path=f"{_TASK}/timeout", handle=extend_task, body=MoreTime, problems=(404, 409)),
    Route(**_CHANGE, path=f"{_TASK}/meta", handle=update_meta, body=MetaValues, problems=(404, 422)),
)
