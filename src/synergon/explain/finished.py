"""Makes the sentences about running and final tasks."""

from __future__ import annotations

from datetime import datetime

from synergon.explain.node_view import NodeView
from synergon.explain.text import clock_time, lasting, plural
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskRecord


def running(task: TaskRecord, node: NodeView | None, now: datetime) -> str:
    """The sentence for a running task: on which node it runs, for how long, and what is unusual about it."""
    where = node.record.name if node is not None else task.node_id
    server = f", on server {task.server}" if task.server is not None else ""
    how = f"running on {where}{server}"
    if node is not None and task.id in node.state.promised:
        how = f"claimed by {where}{server}, waits for others to yield to it"
    odd = [
        "overdue: its function could not be stopped at its deadline" if task.overdue else "",
        "its cancellation was requested" if task.cancel_requested else "",
        "" if node is not None and not node.is_silent else "its node has not been heard from, and loses it soon",
    ]
    return "; ".join([f"{how} {lasting(task.started_at, now)}, {_attempt(task)}", *filter(None, odd)])


def ended(task: TaskRecord, now: datetime) -> str:
    """The sentence for a final task: how and when it ended."""
    when = "" if task.finished_at is None else f" at {clock_time(task.finished_at, now)}"
    attempts = f" after {plural(task.attempts, 'attempt')}" if task.attempts else ""
    if task.state is State.SUCCEEDED:
        return f"succeeded{when}{attempts}"
    reason = f" ({task.reason})" if task.reason is not None else ""
    if task.state is State.CANCELLED:
        return f"cancelled{when}{attempts}{reason}"
    error = "" if task.error is None else f": {task.error.type}: {_first_line(task.error.message)}".rstrip(": ")
    return f"failed{when}{attempts}{reason}{error}"


def _attempt(task: TaskRecord) -> str:
    most = "" if task.max_attempts is None else f" of {task.max_attempts}"
    crashes = f", crashed {plural(task.crashes, 'time')} before" if task.crashes else ""
    deaths = f", isolated after {plural(task.owner_deaths, 'death')} of its nodes" if task.owner_deaths else ""
    return f"attempt {task.attempts}{most}{crashes}{deaths}"


def suspicion(task: TaskRecord) -> str:
    """Why a task that waits or runs is a suspect; empty if it is not a suspect."""
    if not task.is_suspect:
        return ""
    causes = [
        f"{plural(task.owner_deaths, 'node')} died while it ran there" if task.owner_deaths else "",
        f"it crashed {plural(task.crashes, 'time')}" if task.crashes else "",
    ]
    why = " and ".join(filter(None, causes)) or "it ended as one before"
    return f"; suspect, so it runs isolated and behind others of its priority ({why})"


def _first_line(message: str) -> str:
    return message.partition("\n")[0]
