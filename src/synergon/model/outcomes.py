"""Records of outcomes, and of the store's verdicts on them."""

from __future__ import annotations

from datetime import datetime

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.limits import ServerChange
from synergon.model.record import Record
from synergon.model.tasks import NewTask


class ErrorRecord(Record, frozen=True, kw_only=True):
    """The error of one failed attempt."""

    attempt: int
    type: str
    message: str
    traceback: str = ""
    node_id: str | None = None
    node_name: str | None = None
    """The name of the node, also after it is gone. The store sets it and the host."""
    host: str | None = None
    at: datetime | None = None
    """When the store received the error, by the store's clock. The store sets it."""


class Succeeded(Record, frozen=True, kw_only=True):
    """The task function returned."""

    result: bytes | None = None
    children: tuple[NewTask, ...] = ()
    """Tasks that the store inserts only together with the success."""
    is_map: bool = False
    """Whether the children are the items of a map: the tasks that depend on this one wait for them, too."""
    has_shared_children: bool = False
    """Whether the children belong to a whole batch: they are inserted even if the task itself was cancelled."""


class Failed(Record, frozen=True, kw_only=True):
    """The task function failed, and is not run again."""

    reason: Reason
    error: ErrorRecord


class Retrying(Record, frozen=True, kw_only=True):
    """The task function failed, and is run again after `delay` microseconds."""

    delay: int
    error: ErrorRecord
    is_timeout: bool = False
    """Whether the attempt ended because its timeout was over."""


class Snoozed(Record, frozen=True, kw_only=True):
    """The task function raised `Snooze`, and is run again after `delay` microseconds. The attempt is not counted."""

    delay: int


class Cancelled(Record, frozen=True, kw_only=True):
    """The task function raised `Cancel`, or the attempt was cancelled."""

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
    is_shared: bool = False
    """Whether the process ran a batch of several tasks. It is not known which of them is to blame, so none is charged;
    each of them becomes a suspect."""


def given_back(node_id: str | None) -> ErrorRecord:
    """The error of a command that its node hands back. The command ends, because a command is never run twice."""
    message = f"node {node_id} gave the command back after it had started; a command is never run twice"
    return ErrorRecord(attempt=0, type="Crash", message=message, node_id=node_id)


class ServerFault(Record, frozen=True, kw_only=True):
    """The task function raised `ServerFailed`: the server is to blame. The attempt is not counted, and the task runs
    again: at once if another server is in service that it has not tried, otherwise later."""

    error: ErrorRecord
    server: tuple[str, str] | None = None
    """The provider and address of the server."""
    otherwise: Failed | Retrying
    """The outcome that applies instead if the task has blamed servers too often, or is a command."""


class KeyAssigned(Record, frozen=True, kw_only=True):
    """The producer could not compute the limit key of the task, and the node has computed it. The task joins that key
    queue; the attempt is not counted."""

    limit_key: str


class Refused(Record, frozen=True, kw_only=True):
    """The arguments do not fit the task function of this node, which may be older than the producer. The attempt is not
    counted, and other nodes may claim the task."""

    error: ErrorRecord
    requirements: str
    """The text of the requirements, as in the claim."""


Outcome = (
    Succeeded | Failed | Retrying | Snoozed | Cancelled | HandedBack | Crashed | ServerFault | KeyAssigned | Refused
)


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
    """The last progress that was not written yet."""
    limit_key: str | None = None
    """The limit key of the claim, from which a store knows which key queue to lock first."""
    group_id: int | None = None
    """The group of the claim, from which a store knows which group to lock first."""
    has_dependents: bool = False
    """Whether other tasks depended on the task when it was claimed. Since then, others may have been added."""
    server: tuple[str, str] | None = None
    """The provider and address of the server, if the outcome counts for the server's health. None otherwise."""
    is_server_well: bool = True
    slot: int | None = None
    """The number of the permit on the server, which becomes free."""
    kind: str | None = None
    """The kind of the task, if its kind has limits, a provider or key queues, or it belongs to a group."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The store's answer to an outcome: the new state of the task. `state` is None if the claim was stale."""

    id: int
    state: State | None
    child_ids: tuple[int, ...] = ()
    kind: str | None = None
    released: tuple[str, ...] = ()
    """The kinds of the tasks that were released because tasks that they depend on have ended. Only the last verdict of
    a call has this field and the next three."""
    ended: tuple[int, ...] = ()
    """The tasks that this call has cancelled because of a dependency."""
    has_scheduled: bool = False
    """Whether some of the released tasks are due later."""
    servers: tuple[ServerChange, ...] = ()
    """The servers that this call has taken out of service, and those that are back."""
    backs_off: bool = False
    """Whether the task has blamed its server without a charge, and runs again later."""


def failed_map(item: str) -> Failed:
    """The failure of a map: a task that waits for the map holds the unique key of an item, so as the task of that item
    it would wait for its own end."""
    message = f"a task that waits for this map holds the unique key of {item}; nothing was created: use another key"
    return Failed(reason=Reason.ERROR, error=ErrorRecord(attempt=0, type="KeyConflict", message=message))


def as_applied(outcome: Outcome, verdict: Verdict) -> Outcome:
    """The outcome that the store has applied: for a `ServerFault` whose task was charged, its `otherwise`; for a map
    whose item would wait for itself, a failure."""
    if isinstance(outcome, Succeeded) and verdict.state is State.FAILED:
        return failed_map("an item of this map")
    is_charged = verdict.state in (State.FAILED, State.SCHEDULED) and not verdict.backs_off
    return outcome.otherwise if isinstance(outcome, ServerFault) and is_charged else outcome


class Report(Record, frozen=True, kw_only=True):
    """Progress or an overdue mark of a running attempt, with its fence."""

    id: int
    claim_no: int
    progress: Progress | None = None
    overdue: bool = False
    """Whether the task function still runs after its deadline."""
