"""Records of attempts: ended attempts, the running attempt, and attempts that go on after their node was stopped."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from synergon.model.record import Record

MOST_ATTEMPTS_STORED: Final = 20
"""How many ended attempts a task remembers. The oldest are dropped, so that a task that runs again and again does not
grow without bound."""


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    ERROR = "error"
    """The task function raised, or its result could not be stored."""
    TIMEOUT = "timeout"
    DISCARDED = "discarded"
    """The task function raised `Discard`."""
    CANCELLED = "cancelled"
    """The task function raised `Cancel`, or the task was cancelled while it ran."""
    SNOOZED = "snoozed"
    PREEMPTED = "preempted"
    """The attempt yielded to an urgent task."""
    HANDED_BACK = "handed back"
    """The node could not finish the attempt: it was stopped, its claim was lost, or its child process did not start."""
    CRASHED = "crashed"
    """The child process died while it ran the task function."""
    SERVER_FAILED = "server failed"
    """The task function raised `ServerFailed`, and the task ran again without a charge."""
    REFUSED = "refused"
    """The arguments did not fit the task function of the node."""
    NODE_DIED = "node died"
    """The lease of the node ended while it ran the attempt."""


class AttemptRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of a task."""

    claim_no: int
    """The number of the claim. It grows with each attempt of a task; `attempt` does not, because some attempts are not
    counted."""
    attempt: int
    """The value of `ctx.attempt`."""
    outcome: AttemptOutcome | None = None
    """None while the attempt runs."""
    started_at: datetime | None = None
    """When the node claimed the task."""
    ended_at: datetime | None = None
    """When the store received the outcome. None while the attempt runs."""
    node_id: str | None = None
    node_name: str | None = None
    """The name of the node. In lists of tasks, it is None for a success and for a running attempt."""
    host: str | None = None
    """The host of the node. None if `node_name` is None."""
    server: str | None = None
    """The server of the provider that the attempt ran on."""
    error: str | None = None
    """The type of the error. The errors of the task have its message and traceback, with `at` equal to `ended_at`."""

    @property
    def seconds(self) -> float | None:
        """How long the attempt took. None while it runs."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()


class BatchItem(Record, frozen=True, kw_only=True):
    """One task of a batch, as the task function sees it."""

    task_id: int
    attempt: int
    """The number of the attempt. It may differ between items."""
    meta_json: bytes | None = None

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata that the caller attached."""
        decoded: dict[str, Any] = msgspec.json.decode(self.meta_json) if self.meta_json else {}
        return decoded


class UnfinishedTask(Record, frozen=True, kw_only=True):
    """A task whose function goes on although its node was stopped. The node keeps the claim until the function ends or
    the process exits."""

    id: int
    kind: str
    thread: str | None = None
    """The name of the thread. None if the function is a coroutine."""
    location: str | None = None
    """Where the thread is now: file, line and function."""

    def __str__(self) -> str:
        where = f" in thread {self.thread}" if self.thread is not None else ""
        at = f" at {self.location}" if self.location is not None else ""
        return f"{self.id} ({self.kind}){where}{at}"
