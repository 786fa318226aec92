"""How attempts end, and what the store made of it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.record import Record
from synergon.model.tasks import NewTask


class ErrorRecord(Record, frozen=True, kw_only=True):
    """One failed attempt."""

    attempt: int
    type: str
    message: str
    traceback: str = ""
    node_id: str | None = None
    at: datetime | None = None
    """Set by the store, by its own clock."""


class Succeeded(Record, frozen=True, kw_only=True):
    """The body returned."""

    result: bytes | None = None
    children: tuple[NewTask, ...] = ()
    """Stored together with the success, and not otherwise."""


class Failed(Record, frozen=True, kw_only=True):
    """The body failed and there is no further attempt."""

    reason: Reason
    error: ErrorRecord


class Retrying(Record, frozen=True, kw_only=True):
    """The body failed and is run again after `delay` microseconds."""

    delay: int
    error: ErrorRecord


class Snoozed(Record, frozen=True, kw_only=True):
    """The body asked to be run again after `delay` microseconds; the attempt is given back."""

    delay: int


class Cancelled(Record, frozen=True, kw_only=True):
    """The body raised `Cancel`, or ended because it was cancelled."""

    why: str | None = None


class HandedBack(Record, frozen=True, kw_only=True):
    """The node could not finish it and gives it back; the attempt is given back too."""

    protected_for: int = 0
    """Microseconds for which it may not be asked to yield again, because it just has."""


class Crashed(Record, frozen=True, kw_only=True):
    """The child process died under the body: the attempt is given back, a crash is charged."""

    error: ErrorRecord


def given_back(node_id: str | None) -> ErrorRecord:
    """The error of a command whose node gives it back: it ends, because a command is never run twice."""
    message = f"node {node_id} gave the command back after it had started; a command is never run twice"
    return ErrorRecord(attempt=0, type="Crash", message=message, node_id=node_id)


class KeyAssigned(Record, frozen=True, kw_only=True):
    """The producer did not know in which line the task belongs, the node does: it goes back into that line, and the
    attempt is given back."""

    limit_key: str


Outcome = Succeeded | Failed | Retrying | Snoozed | Cancelled | HandedBack | Crashed | KeyAssigned


class Progress(Record, frozen=True, kw_only=True):
    """How far a body says it is."""

    fraction: float
    message: str = ""


class FencedOutcome(Record, frozen=True, kw_only=True):
    """The outcome of one attempt, addressed by its fence."""

    id: int
    claim_no: int
    outcome: Outcome
    progress: Progress | None = None
    """The last report that was not written yet."""
    limit_key: str | None = None
    """As the claim says; so that a store knows which rows to lock first."""
    group_id: int | None = None
    """The same."""
    server: tuple[str, str] | None = None
    """The provider and the server's address, if the outcome says something about that server's health."""
    is_server_well: bool = True
    slot: int | None = None
    """Which of that server's places becomes free."""
    kind: str | None = None
    """Of a task that shares limits with others: they may start in the same step."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What the store made of a Settlement: the state it led to, or None if the claim was stale."""

    id: int
    state: State | None
    child_ids: tuple[int, ...] = ()
    kind: str | None = None
    released: tuple[str, ...] = ()
    """The kinds of tasks that were let go with the same call: they waited for groups which have ended, or in a line.
    One of its verdicts says so."""


class Report(Record, frozen=True, kw_only=True):
    """A note from a running attempt, addressed by its fence."""

    id: int
    claim_no: int
    progress: Progress | None = None
    overdue: bool = False
    """The body ran past its deadline and could not be stopped yet."""
