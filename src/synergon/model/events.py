"""Events of tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from synergon.model.lifecycle import Reason, State
from synergon.model.record import Record

EventName = Literal[
    "started", "succeeded", "failed", "cancelled", "retried", "snoozed", "handed_back", "crashed", "server_failed"
]
"""What happened to the task. `retried`: it failed and runs again. `handed_back`: its node handed it back without a
charge. `crashed`: its process died, and it runs again. `server_failed`: it blamed its server, and runs again."""

ServerEventName = Literal["server_out", "server_back"]


class Event(Record, frozen=True, kw_only=True):
    """A change of a task that the store has committed."""

    name: EventName
    task_id: int
    kind: str
    queue: str | None = None
    """None, here and in the fields below, if the part that made the event does not know the value."""
    state: State
    """The new state of the task."""
    reason: Reason | None = None
    attempt: int | None = None
    """How many attempts the task had at this event."""
    node_id: str | None = None
    """The node that ran the task last."""
    at: datetime
    """When the event happened: by the store's clock in a stream of final events, by the node's clock in events of a
    node."""
    tags: tuple[str, ...] = ()
    title: str | None = None
    """The text that the option `title` makes from the arguments."""
    cursor: str | None = None
    """In a stream of final events: pass this as `after` to continue after this event. Otherwise None."""


class ServerEvent(Record, frozen=True, kw_only=True):
    """A server was taken out of service, or is back."""

    name: ServerEventName
    provider: str
    address: str
    reason: str
    """The cause, such as `5 failures in a row`."""
    until: datetime | None = None
    """When the first back-off ends. None if the server is back."""
    node_id: str
    """The node whose attempt or probe decided it."""
    at: datetime
    """When it happened, by the node's clock."""


_GIVEN_FIELDS: Final = ("kind", "queue", "tags", "title")


def given_fields(task: Any) -> dict[str, Any]:
    """The fields of an event that were given when the task was enqueued, from a claim or a record of the task."""
    return {name: getattr(task, name) for name in _GIVEN_FIELDS}
