"""Records of outcomes, and of the store's verdicts about them."""

from __future__ import annotations

from datetime import datetime

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.record import Record
from synergon.model.tasks import NewTask


class ErrorRecord(Record, frozen=True, kw_only=True):
    """The error of one failed attempt."""

    attempt: int
    type: str
    message: str
    traceback: str = ""
    node_id: str | None = None
    at: datetime | None = None
    """Set by the store, by its own clock."""


class Succeeded(Record, frozen=True, kw_only=True):
    """The task function returned."""

    result: bytes | None = None
    children: tuple[NewTask, ...] = ()
    """Tasks that are stored only together with the success."""


class Failed(Record, frozen=True, kw_only=True):
    """The task function failed, and there is no further attempt."""

    reason: Reason
    error: ErrorRecord


class Retrying(Record, frozen=True, kw_only=True):
    """The task function failed, and runs again after `delay` microseconds."""

    delay: int
    error: ErrorRecord


class Snoozed(Record, frozen=True, kw_only=True):
    """The task function asked to run again after `delay` microseconds. The attempt is not counted."""

    delay: int


class Cancelled(Record, frozen=True, kw_only=True):
    """The task function raised `Cancel`, or ended because it was cancelled."""

    why: str | None = None


class HandedBack(Record, frozen=True, kw_only=True):
    """The node could not finish the task and hands it back. The attempt is not counted, and a suspect stays one."""

    delay: int | None = None
    """For how many microseconds the task is deferred, because another attempt now would fail, too."""
    protected_for: int = 0
    """For how many microseconds the task is protected from preemption, because it has just yielded."""


class Crashed(Record, frozen=True, kw_only=True):
    """The child process died while it ran the task function. The attempt is not counted, but a crash is charged."""

    error: ErrorRecord


def given_back(node_id: str | None) -> ErrorRecord:
    """The error of a command whose node gives it back: it ends, because a command is never run twice."""
    message = f"node {node_id} gave the command back after it had started; a command is never run twice"
    return ErrorRecord(attempt=0, type="Crash", message=message, node_id=node_id)


class KeyAssigned(Record, frozen=True, kw_only=True):
    """The producer did not know the key queue of the task, and the node does: the task joins that key queue, and the
    attempt is not counted."""

    limit_key: str


Outcome = Succeeded | Failed | Retrying | Snoozed | Cancelled | HandedBack | Crashed | KeyAssigned


class Progress(Record, frozen=True, kw_only=True):
    """The progress that a task function has reported."""

    fraction: float
    message: str = ""


class FencedOutcome(Record, frozen=True, kw_only=True):
    """The outcome of one attempt, with its fence."""

    id: int
    claim_no: int
    outcome: Outcome
    progress: Progress | None = None
    """The last report that was not written yet."""
    limit_key: str | None = None
    """As in the claim, so that a store knows which key queue to lock first."""
    group_id: int | None = None
    """As in the claim, so that a store knows which group to lock first."""
    server: tuple[str, str] | None = None
    """Provider and address of the server, if the outcome counts for its health."""
    is_server_well: bool = True
    slot: int | None = None
    """The number of the permit on that server that becomes free."""
    kind: str | None = None
    """The kind of the task, if it shares permits with others that may start with the commit."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The store's answer to an outcome: the new state of the task, or None if the claim was stale."""

    id: int
    state: State | None
    child_ids: tuple[int, ...] = ()
    kind: str | None = None
    released: tuple[str, ...] = ()
    """The kinds of tasks that this call has released from groups or key queues. One verdict of the call lists them
    all."""


class Report(Record, frozen=True, kw_only=True):
    """Progress or an overdue mark of a running attempt, with its fence."""

    id: int
    claim_no: int
    progress: Progress | None = None
    overdue: bool = False
    """The task function still runs after its deadline."""
