"""Events of tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from synergon.model.lifecycle import Reason, State
from synergon.model.record import Record

EventName = Literal["started", "succeeded", "failed", "cancelled", "retried", "snoozed", "handed_back", "crashed"]
"""`retried`: the task failed and runs again; `handed_back`: its node handed it back without a charge; `crashed`: its
process died and the task runs again."""


class Event(Record, frozen=True, kw_only=True):
    """A stored change of a task."""

    name: EventName
    task_id: int
    kind: str
    queue: str | None = None
    """None, here and below, if the sender of the event does not know it."""
    state: State
    """The new state of the task."""
    reason: Reason | None = None
    attempt: int | None = None
    """The number of attempts at this event."""
    node_id: str | None = None
    """The node that ran the task last."""
    at: datetime
    """By the store's clock in a stream of final events, by the node's clock in events of a node."""
    tags: tuple[str, ...] = ()
    title: str | None = None
    """Made of its arguments by the option `title`."""
    cursor: str | None = None
    """In a stream of ends: give this as `after` to go on behind this event."""


_GIVEN_FIELDS: Final = ("kind", "queue", "tags", "title")


def given_fields(task: Any) -> dict[str, Any]:
    """What an event says of a task that was given when it was enqueued, from a claim or a record."""
    return {name: getattr(task, name) for name in _GIVEN_FIELDS}
