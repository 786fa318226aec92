"""The routes that change all tasks that match a filter.

A request waits for the operation for a while, then the operation goes on without it. A caller that accepts lines of
JSON gets one after each transaction instead: how many tasks are done so far. In both cases the operation goes on if the
caller disconnects, and the audit gets its outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import StreamingResponse

from synergon.client import bulk
from synergon.client.operations import check_due, check_why, query_of
from synergon.errors import SynergonError
from synergon.model.task_records import TaskQuery, TaskRecord
from synergon.model.tasks import Moved
from synergon.options.options import check_priority
from synergon.web import documents
from synergon.web.access import Role
from synergon.web.background import WAIT_SECONDS, start
from synergon.web.inputs import Moment
from synergon.web.json_text import encode
from synergon.web.problems import HIDDEN, Problem, problem_of
from synergon.web.routes import ApiCall, Route
from synergon.web.task_routes import Number, TaskConditions, reject_secret_names
from synergon.web.visible_tasks import CONTENT_FILTERS, last_error

LINES: Final = "application/x-ndjson"
"""The media type of progress: one document on each line."""


class TaskFilter(TaskConditions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks an operation concerns, as in a listing."""

    meta: dict[str, Any] | None = None


class Bulk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tasks of an operation on many. Without a filter, `all` must be true. A dry run only counts them."""

    filter: TaskFilter = TaskFilter()
    all: bool = False
    dry_run: bool = False
    why: str | None = None


class BulkReschedule(Bulk, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks are rescheduled, and when they are due."""

    delay: str | float | None = None
    run_at: Moment | None = None


class BulkPriority(Bulk, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks get another priority."""

    priority: Number


async def cancel_tasks(call: ApiCall) -> Any:
    """Cancel all tasks that match; live ones, unless states are given."""
    return await _change_all(call, bulk.cancel(check_why(call.body.why)))


async def retry_tasks(call: ApiCall) -> Any:
    """Retry all tasks that match; failed ones, unless states are given."""
    return await _change_all(call, bulk.retry(check_why(call.body.why)))


async def delete_tasks(call: ApiCall) -> Any:
    """Delete all tasks that match; ended ones, unless states are given."""
    return await _change_all(call, bulk.delete(check_why(call.body.why)))


async def reschedule_tasks(call: ApiCall) -> Any:
    """Change when all scheduled and ready tasks that match are due."""
    due = check_due(call.body.delay, call.body.run_at)
    return await _change_all(call, bulk.reschedule(*due, check_why(call.body.why)))


async def prioritize_tasks(call: ApiCall) -> Any:
    """Change the priority of all tasks that match and have not started."""
    priority = check_priority(call.body.priority)
    return await _change_all(call, bulk.set_priority(priority, check_why(call.body.why)))


async def _change_all(call: ApiCall, operation: bulk.BulkOperation) -> Any:
    wanted: Bulk = call.body
    filters = msgspec.structs.asdict(wanted.filter)
    _check_hidden(call, filters)
    only = _only(call, filters.pop("error"))
    query = query_of(filters)
    operation.check_states(query.states)
    if wanted.dry_run:
        matching = await call.engine._bulk.count(operation, query, only)
        return {"matching": matching, "visited": None, "changed": None, "is_done": True}
    if query == TaskQuery() and only is None and not wanted.all:
        raise Problem(400, 'give a filter, or "all": true for all tasks')
    progress = _Progress()
    running = start(call.engine._bulk.apply(operation, query, progress.add, only))
    if LINES in call.request.headers.get("accept", ""):
        return StreamingResponse(_lines(call, running, progress), media_type=LINES)
    await asyncio.wait([running], timeout=WAIT_SECONDS)
    return _document(running, progress)


def _only(call: ApiCall, fingerprint: str | None) -> bulk.Condition | None:
    """The condition that the last error of a task, as the caller sees it, has this fingerprint."""
    if fingerprint is None:
        return None

    def is_met(task: TaskRecord) -> bool:
        return last_error(call.redactor, task).fingerprint == fingerprint

    return bulk.Condition(f"error={fingerprint}", is_met)


class _Progress:
    """The progress of an operation."""

    def __init__(self) -> None:
        self.visited: int = 0
        self.changed: int = 0
        self.changes: Final = asyncio.Event()
        """Set after each transaction."""

    def add(self, moves: Sequence[Moved]) -> None:
        """Count the tasks that one transaction has visited and changed."""
        self.visited += len(moves)
        self.changed += sum(moved.done for moved in moves)
        self.changes.set()


def _document(running: asyncio.Task[int], progress: _Progress) -> dict[str, Any]:
    """The progress or the result. Raises the error that has stopped the operation."""
    changed = running.result() if running.done() else progress.changed
    return {"matching": None, "visited": progress.visited, "changed": changed, "is_done": running.done()}


async def _lines(call: ApiCall, running: asyncio.Task[int], progress: _Progress) -> AsyncIterator[bytes]:
    """The progress after each transaction, then the result, or the problem that has stopped the operation."""
    while not running.done():
        yield encode(_document(running, progress)) + b"\n"
        change = asyncio.ensure_future(progress.changes.wait())
        await asyncio.wait([running, change], return_when=asyncio.FIRST_COMPLETED)
        change.cancel()
        progress.changes.clear()
    try:
        yield encode(_document(running, progress)) + b"\n"
    except SynergonError as error:
        yield encode(problem_of(error).document()) + b"\n"
    except Exception:
        call.engine.logger.exception("web: an operation on many tasks failed")
        yield encode(Problem(500, HIDDEN[500]).document()) + b"\n"


def _check_hidden(call: ApiCall, filters: Mapping[str, Any]) -> None:
    """Raise Problem for a filter over hidden values: the number of matching tasks would reveal them, letter by
    letter."""
    reject_secret_names(filters["meta"])
    for name in CONTENT_FILTERS:
        if filters[name] is not None and not call.user.role.allows(Role.ADMIN):
            raise Problem(
                403, f"{name} also looks at hidden values, so in an operation on many it needs the role admin"
            )


_BULK: Final[dict[str, Any]] = {
    "method": "POST",
    "role": Role.OPERATE,
    "answer": documents.Changed,
    "is_long": True,
    "lines_type": LINES,
}

ROUTES: Final = (
    Route(**_BULK, path="/tasks/cancel", handle=cancel_tasks, body=Bulk),
    Route(**_BULK, path="/tasks/retry", handle=retry_tasks, body=Bulk),
    Route(**_BULK, path="/tasks/delete", handle=delete_tasks, body=Bulk),
    Route(**_BULK, path="/tasks/reschedule", handle=reschedule_tasks, body=BulkReschedule),
    Route(**_BULK, path="/tasks/priority", handle=prioritize_tasks, body=BulkPriority),
)
