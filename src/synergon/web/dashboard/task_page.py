"""The page of one task: why it waits, its attempts, errors, arguments and result, and what can be done about it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from synergon.client.node_overview import read_overviews
from synergon.explain.explanation import Cause
from synergon.explain.text import reasons
from synergon.model.lifecycle import FINAL, State
from synergon.model.task_statistics import fingerprint
from synergon.web import task_routes
from synergon.web.dashboard import tracebacks
from synergon.web.dashboard.pages import Page, asked, page
from synergon.web.dashboard.text import between
from synergon.web.routes import ApiCall

MOST_CHILDREN: Final = 10

ACTIONS: Final[dict[State, tuple[str, ...]]] = {
    State.WAITING: ("priority", "cancel", "delete"),
    State.SCHEDULED: ("run", "priority", "cancel", "delete"),
    State.READY: ("priority", "cancel", "delete"),
    State.RUNNING: ("timeout", "cancel"),
    State.SUCCEEDED: ("retry", "delete"),
    State.FAILED: ("retry", "delete"),
    State.CANCELLED: ("retry", "delete"),
}
"""The actions that make sense in each state."""


async def show_task(call: ApiCall) -> Page:
    """The page of one task."""
    task_id = call.path["task_id"]
    task = await asked(call, task_routes.show_task, task_id=task_id)
    explanation = await asked(call, task_routes.explain_task, task_id=task_id)
    names = {node.id: node.name for node in await read_overviews(call.engine._store, with_waiting=True)}
    state = State(task["state"])
    return Page(
        "task.html",
        task["title"] or f"{task['kind']} {task_id}",
        {
            "task": task,
            "actions": ACTIONS[state],
            "is_final": state in FINAL,
            "explanation": explanation,
            "outlooks": [_outlook(node) for node in explanation["nodes"]],
            "names": names,
            "attempts": _attempts(task, names),
            "errors": [_error(error) for error in reversed(task["errors"])],
            "alike": _alike(task),
            "python": python_text(task["kind"], task["arguments"]),
            "group": await _group(call, task["group_id"]),
            **await _children(call, task_id),
        },
    )


async def _children(call: ApiCall, task_id: int) -> dict[str, Any]:
    """The first tasks that this task has created, and whether there are more."""
    query = task_routes.TaskListQuery(parent=task_id, ascending=True, limit=MOST_CHILDREN)
    found = await asked(call, task_routes.list_tasks, query)
    return {"children": found["tasks"], "has_more_children": found["next"] is not None}


async def _group(call: ApiCall, group_id: int | None) -> Any:
    """The flow or group that the task belongs to."""
    if group_id is None:
        return None
    (found,) = await call.engine._store.groups([group_id])
    return found


def _outlook(node: dict[str, Any]) -> dict[str, Any]:
    """Whether one node can start the task, with the reason as text if it cannot."""
    causes = msgspec.convert(node["causes"], tuple[Cause, ...])
    text = "can start it" if node["can_start"] else reasons(causes, datetime.now(UTC)) if causes else "cannot start it"
    return {"name": node["name"], "can_start": node["can_start"], "text": text}


def _attempts(task: dict[str, Any], names: dict[str, str]) -> list[dict[str, Any]]:
    """The attempts, oldest first, each with the wait before it, and its part of the whole time in per cent."""
    begin = task["enqueued_at"]
    whole = max(between(begin, task["finished_at"]) or 0.0, 0.001)
    rows, last = [], begin
    for attempt in task["attempts_made"]:
        started, ended = attempt.get("started_at"), attempt.get("ended_at")
        offset = between(begin, started) or 0.0 if started else 0.0
        length = between(started, ended) if started else None
        left = min(offset / whole * 100, 99.0)
        node_id = attempt.get("node_id")
        rows.append(
            {
                **{name: attempt.get(name) for name in ("claim_no", "attempt", "outcome", "server", "error", "host")},
                "started_at": started,
                "node": attempt.get("node_name") or names.get(node_id or "", node_id),
                "wait": between(last, started) if started else None,
                "seconds": length,
                "left": round(left, 2),
                "width": round(max(min((length or 0.0) / whole * 100, 100 - left), 1.0), 2),
            }
        )
        last = ended or last
    return rows


def _alike(task: dict[str, Any]) -> dict[str, str] | None:
    """The filters of the task list that find all tasks with the last error of `task`. None if it has not failed."""
    if task["state"] != State.FAILED or not task["errors"]:
        return None
    last = task["errors"][-1]
    return {"state": State.FAILED, "error": fingerprint(last["type"], last["message"])[0]}


def _error(error: dict[str, Any]) -> dict[str, Any]:
    return {**error, "frames": tracebacks.frames_of(error["traceback"])}


def python_text(kind: str, arguments: dict[str, Any] | None) -> str:
    """The call of the task as Python code. Hidden arguments are `...`."""
    if arguments is None:
        return f"await engine.enqueue([engine.call({kind!r}, ...)])"
    if all(name.isidentifier() for name in arguments):
        given = "".join(f", {name}={value!r}" for name, value in arguments.items())
    else:
        given = f", **{arguments!r}"
    return f"await engine.enqueue([engine.call({kind!r}{given})])"


PAGES: Final = (page("/tasks/{task_id:int}", show_task),)
