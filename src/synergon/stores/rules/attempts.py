"""Records how attempts of tasks ended.

Every attempt that ends without success is appended to the list in its task's row (`ended_attempts`), by the statement
that charges the task. A success is not written: the row of a task that has succeeded contains when its last attempt
started and ended, and where it ran (`TaskRecord.attempts_made`). Only a retry of such a task writes its success.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from synergon.model.attempts import MOST_ATTEMPTS_STORED, AttemptOutcome, AttemptRecord
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    Failed,
    HandedBack,
    KeyAssigned,
    Outcome,
    Refused,
    Retrying,
    ServerFault,
    Snoozed,
)
from synergon.model.record import to_datetime
from synergon.stores.rows import FinalTask, LiveTask, NodeName
from synergon.stores.session import Session

NodeNames = Mapping[str, NodeName]
"""The names of nodes by id."""


def outcome_of(outcome: Outcome) -> AttemptOutcome | None:
    """How an attempt with this outcome ended. None if its task function did not run, and another attempt follows at
    once."""
    match outcome:
        case Retrying(is_timeout=True) | Failed(reason=Reason.TIMEOUT):
            return AttemptOutcome.TIMEOUT
        case Failed(reason=Reason.DISCARDED):
            return AttemptOutcome.DISCARDED
        case Retrying() | Failed():
            return AttemptOutcome.ERROR
        case Snoozed():
            return AttemptOutcome.SNOOZED
        case HandedBack(protected_for=protected_for):
            return AttemptOutcome.PREEMPTED if protected_for > 0 else AttemptOutcome.HANDED_BACK
        case Crashed():
            return AttemptOutcome.CRASHED
        case ServerFault():
            return AttemptOutcome.SERVER_FAILED
        case Refused():
            return AttemptOutcome.REFUSED
        case KeyAssigned():
            return None
        case _:  # a success of a task that is to be cancelled is no success
            return AttemptOutcome.CANCELLED


async def names_of(session: Session, ids: Collection[str]) -> dict[str, NodeName]:
    """The names of these nodes, also of nodes that are gone."""
    return await session.nodes.names(ids)


async def node_names(session: Session, tasks: Iterable[LiveTask]) -> NodeNames:
    """The names of the nodes that run these tasks."""
    ids = {task.node_id for task in tasks if task.node_id is not None}
    return await session.nodes.names(ids) if ids else {}


async def with_ended(
    session: Session, task: LiveTask, outcome: Outcome | AttemptOutcome, names: NodeNames
) -> tuple[AttemptRecord, ...] | None:
    """The ended attempts of a running task, including the one that ends now. None if that attempt is not recorded."""
    ended = outcome if isinstance(outcome, AttemptOutcome) else outcome_of(outcome)
    if ended is None:
        return None
    # The clock of the database may have been set back.
    ended_at = max(await session.read_clock(), task.started_at or 0)
    node = names.get(task.node_id or "")
    error = None if isinstance(outcome, AttemptOutcome | Cancelled) else getattr(outcome, "error", None)
    entry = AttemptRecord(
        claim_no=task.claim_no,
        attempt=task.attempts,
        outcome=ended,
        started_at=None if task.started_at is None else to_datetime(task.started_at),
        ended_at=to_datetime(ended_at),
        node_id=task.node_id,
        node_name=None if node is None else node.name,
        host=_host(node),
        server=task.server,
        error=None if error is None else error.type,
    )
    return _last((*task.ended_attempts, entry))


async def keep_success(session: Session, task: FinalTask) -> None:
    """Record the success of a task that was just brought back for a retry, because its row no longer contains when that
    attempt started and ended. Does nothing if the task had not succeeded."""
    if task.state is State.SUCCEEDED:
        names = {} if task.node_id is None else await session.nodes.names([task.node_id])
        success = _success(task, names.get(task.node_id or ""))
        await session.tasks.set_ended_attempts(task.id, _last((*task.ended_attempts, success)))


def _success(task: FinalTask, node: NodeName | None) -> AttemptRecord:
    return AttemptRecord(
        claim_no=task.claim_no,
        attempt=task.attempts,
        outcome=AttemptOutcome.SUCCEEDED,
        started_at=None if task.started_at is None else to_datetime(task.started_at),
        ended_at=to_datetime(task.finished_at),
        node_id=task.node_id,
        node_name=None if node is None else node.name,
        host=_host(node),
        server=task.server,
    )


def _host(node: NodeName | None) -> str | None:
    return None if node is None or node.process is None else node.process.host


def _last(entries: tuple[AttemptRecord, ...]) -> tuple[AttemptRecord, ...]:
    return entries[-MOST_ATTEMPTS_STORED:]
