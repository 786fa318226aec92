"""Tasks that do not wait: how they run, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from synergon.explaining.words import clock_time, lasting, plural
from synergon.lifecycle import State
from synergon.records import NodeRecord, TaskRecord
from synergon.this_process import is_gone


def is_silent(node: NodeRecord) -> bool:
    """Whether it is dead, as far as anybody can see."""
    return node.lease_left <= 0 or is_gone(node.process)


def running(task: TaskRecord, nodes: Sequence[NodeRecord], now: datetime) -> str:
    """Where, for how long, and what is odd about it."""
    node = next((node for node in nodes if node.id == task.node_id), None)
    where = f" on {node.name if node is not None else task.node_id}"
    server = f", on server {task.server}" if task.server is not None else ""
    odd = [
        "overdue: its body could not be stopped at its deadline" if task.overdue else "",
        "somebody has asked to cancel it" if task.cancel_requested else "",
        "" if node is not None and not is_silent(node) else "its node has not been heard from, and loses it soon",
    ]
    return "; ".join([f"running{where}{server} {lasting(task.started_at, now)}, {_attempt(task)}", *filter(None, odd)])


def ended(task: TaskRecord, now: datetime) -> str:
    """How and when it ended."""
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
    return f"attempt {task.attempts}{most}{crashes}"


def _first_line(message: str) -> str:
    return message.partition("\n")[0]
