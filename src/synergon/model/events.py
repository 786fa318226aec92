"""What can be heard of tasks while they go their way."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from synergon.model.lifecycle import Reason, State
from synergon.model.record import Record

EventName = Literal["started", "succeeded", "failed", "cancelled", "retried", "snoozed", "handed_back", "crashed"]
"""`retried`: it failed and is run again; `handed_back`: its node gave it back uncharged; `crashed`: its process died
under it and it is run again."""


class Event(Record, frozen=True, kw_only=True):
    """Something has become of a task, and is stored."""

    name: EventName
    task_id: int
    kind: str
    queue: str | None = None
    """None, here and below: whoever tells of it does not know."""
    state: State
    """Where it has led to."""
    reason: Reason | None = None
    attempt: int | None = None
    """How many attempts were charged to it when it began or ended."""
    node_id: str | None = None
    """The node that ran it last."""
    at: datetime
    """By the store's clock in a stream of ends, by the node's own clock in what the node tells."""
    tags: tuple[str, ...] = ()
    title: str | None = None
    """Made of its arguments by the option `title`."""
    cursor: str | None = None
    """In a stream of ends: give this as `after` to go on behind this event."""


_GIVEN_FIELDS: Final = ("kind", "queue", "tags", "title")


def given_fields(task: Any) -> dict[str, Any]:
    """What an event says of a task that was given when it was enqueued, from a claim or a record."""
    return {name: getattr(task, name) for name in _GIVEN_FIELDS}
