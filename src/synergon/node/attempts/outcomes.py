"""Builds the outcomes of attempts that did not succeed, from the error of the task function or the reason to stop
it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from synergon.errors import Cancel, Control, Discard, PayloadError, RetryAfter, ServerFailed, Snooze
from synergon.model.claims import Claim
from synergon.model.lifecycle import Reason
from synergon.model.outcomes import (
    Cancelled,
    ErrorRecord,
    Failed,
    FencedOutcome,
    HandedBack,
    Outcome,
    Refused,
    Retrying,
    ServerFault,
    Snoozed,
    Succeeded,
)
from synergon.model.record import storable
from synergon.model.tasks import NewTask
from synergon.node.attempts.attempt import Attempt, Stop
from synergon.node.attempts.batch_results import DescribedError, ItemEnd
from synergon.options.durations import LONGEST_SECONDS, microseconds
from synergon.stores.contention import RolledBack

_ENGINE: Final = Path(__file__).parent

TRACEBACK_LENGTH: Final = 16_000
MESSAGE_LENGTH: Final = 4_000

UNWRITTEN_SECONDS: Final = 1.0
"""After how many seconds a task runs again if the database could not write its transaction."""

PROTECTED_SECONDS: Final = 60.0
"""For how many seconds a task that has yielded is protected from preemption."""


def of_each(attempt: Attempt, make: Callable[[Attempt], Outcome]) -> Outcome:
    """The outcome of an attempt. If it leads a batch, also sets the outcomes of its members. An item that was left out
    of the batch keeps its own."""
    for member in attempt.members:
        member.outcome = member.fixed_outcome or make(member)
    return attempt.fixed_outcome or make(attempt)


def of_all(attempt: Attempt, outcome: Outcome) -> Outcome:
    """Like `of_each`, with one outcome for all items."""
    return of_each(attempt, lambda _: outcome)


def of_stop(attempt: Attempt, node_id: str, chance: Callable[[], float]) -> Outcome:
    """The outcome of an attempt that ended because this was requested (`attempt.stop`)."""
    return of_each(attempt, lambda item: _of_stop(item, attempt, node_id, chance))


def _of_stop(attempt: Attempt, execution: Attempt, node_id: str, chance: Callable[[], float]) -> Outcome:
    match execution.stop:
        case Stop.TIMEOUT:
            error = ErrorRecord(
                attempt=attempt.claim.attempts,
                type="Timeout",
                message=f"the function ran longer than its timeout of {execution.timeout:g} s",
                node_id=node_id,
            )
            return _failure(attempt, error, chance, last_reason=Reason.TIMEOUT)
        case Stop.CANCEL:
            return Cancelled()
        case Stop.PREEMPTED:
            return HandedBack(protected_for=microseconds(PROTECTED_SECONDS))
        case _:
            return HandedBack()


def of_error(attempt: Attempt, error: BaseException, node_id: str, chance: Callable[[], float]) -> Outcome:
    """The outcome of a task function that raised. In a batch, every item gets the error."""
    control = find_control(error)
    record = describe(error if control is None else control, attempt.claim.attempts, node_id)
    return of_each(attempt, lambda item: _of_error(item, error, control, _numbered(record, item), chance))


def of_item_error(item: Attempt, error: BaseException, node_id: str, chance: Callable[[], float]) -> Outcome:
    """The outcome of an item of a batch that failed with an error of its own."""
    control = find_control(error)
    record = describe(error if control is None else control, item.claim.attempts, node_id)
    return _of_error(item, error, control, record, chance)


def _numbered(record: ErrorRecord, attempt: Attempt) -> ErrorRecord:
    """The error record, with the number of this attempt."""
    number = attempt.claim.attempts
    return record if record.attempt == number else msgspec.structs.replace(record, attempt=number)


def _of_error(
    attempt: Attempt,
    error: BaseException,
    control: Control | None,
    record: ErrorRecord,
    chance: Callable[[], float],
) -> Outcome:
    attempt.is_own_fault = control is not None or isinstance(error, PayloadError)
    match control:
        case Snooze(seconds=seconds):
            return Snoozed(delay=_clamped(seconds))
        case Cancel():
            return Cancelled(why=storable(str(control)) or None)
        case Discard():
            return Failed(reason=Reason.DISCARDED, error=record)
        case RetryAfter(seconds=seconds):
            return _failure(attempt, record, chance, pause=seconds)
    is_retried = attempt.task_type.policy.retry.retries(error)
    outcome = _failed(attempt, record, chance, is_retried=is_retried)
    if isinstance(control, ServerFailed):
        attempt.is_own_fault = False
        server = (attempt.leader or attempt).server
        if server is not None and not attempt.task_type.is_command:
            return ServerFault(error=record, otherwise=outcome, server=(server.provider, server.address))
    return outcome


def of_items(
    attempt: Attempt,
    ends: Sequence[ItemEnd],
    children: tuple[NewTask, ...],
    node_id: str,
    chance: Callable[[], float],
) -> Outcome:
    """The outcomes of a batch whose items ended with these results and errors. The children of the task function belong
    to the whole batch: the first item that has succeeded carries them."""
    made: dict[Attempt, Outcome] = {}
    for item, end in zip(attempt.included, ends, strict=True):
        if isinstance(end, DescribedError):
            made[item] = _failed(item, _numbered(end.error, item), chance, is_retried=end.is_retried)
        elif isinstance(end, BaseException):
            made[item] = of_item_error(item, end, node_id, chance)
        else:
            result = end if item.task_type.policy.keep_result else None
            made[item] = Succeeded(result=result, children=children, has_shared_children=bool(children))
            children = ()
    attempt.is_own_fault |= any(isinstance(outcome, Succeeded) for outcome in made.values())
    return of_each(attempt, made.__getitem__)


def is_same_error(outcome: Outcome, other: Outcome) -> bool:
    """Whether both outcomes have equal errors, or both have none."""
    error, other_error = (getattr(each, "error", None) for each in (outcome, other))
    if error is None or other_error is None:
        return error is other_error
    return (error.type, error.message, error.traceback) == (
        other_error.type,
        other_error.message,
        other_error.traceback,
    )


def outcome_of_item(item: Attempt, outcome: Outcome) -> Outcome:
    """The outcome of an item of a batch. `outcome` is the outcome of the leader."""
    return outcome if item.leader is None else item.outcome or outcome


def of_rolled_back(attempt: Attempt, error: RolledBack, node_id: str, chance: Callable[[], float]) -> Outcome:
    """The outcome of a task function whose transaction the database could not write: the task runs again a little
    later, without a charge. A command fails instead, because it never runs twice."""
    if attempt.task_type.is_command:
        return of_error(attempt, error, node_id, chance)
    return of_all(attempt, Snoozed(delay=microseconds(UNWRITTEN_SECONDS)))


def of_record(attempt: Attempt, error: ErrorRecord, chance: Callable[[], float], *, is_retried: bool = True) -> Outcome:
    """The outcome of a task function that failed in a child process, with this error. `is_retried`: whether its kind
    retries errors of this type."""
    return of_each(attempt, lambda item: _failed(item, _numbered(error, item), chance, is_retried=is_retried))


def _failed(
    attempt: Attempt, error: ErrorRecord, chance: Callable[[], float], *, is_retried: bool
) -> Failed | Retrying:
    return _failure(attempt, error, chance) if is_retried else Failed(reason=Reason.ERROR, error=error)


def of_payload(attempt: Attempt, error: PayloadError, node_id: str) -> Outcome:
    """The outcome of a payload that does not fit the task function. In a batch, it applies to this item only."""
    return of_payload_record(attempt, describe(error, attempt.claim.attempts, node_id))


def of_payload_record(attempt: Attempt, error: ErrorRecord) -> Outcome:
    """The outcome of a payload that does not fit the task function, with its error as a record. The task is refused,
    because another node may have a newer function. A command, or a task whose row is damaged, fails instead."""
    attempt.is_own_fault = True
    if attempt.task_type.is_command or attempt.is_unreadable:
        return Failed(reason=Reason.ERROR, error=error)
    return Refused(error=error, requirements=attempt.claim.requirements)


def _failure(
    attempt: Attempt,
    error: ErrorRecord,
    chance: Callable[[], float],
    *,
    pause: float | None = None,
    last_reason: Reason | None = None,
) -> Failed | Retrying:
    if attempt.claim.attempts < attempt.max_attempts:
        if pause is None:
            pause, error = _pause(attempt, error, chance)
        return Retrying(delay=_clamped(pause), error=error, is_timeout=last_reason is Reason.TIMEOUT)
    exhausted = Reason.EXHAUSTED if attempt.max_attempts > 1 else Reason.ERROR
    return Failed(reason=last_reason or exhausted, error=error)


def _clamped(pause_seconds: float) -> int:
    return microseconds(min(pause_seconds, LONGEST_SECONDS))


def _pause(attempt: Attempt, error: ErrorRecord, chance: Callable[[], float]) -> tuple[float, ErrorRecord]:
    """The delay before the next attempt, by the retry policy, and the error. If the user's `wait` function raises, the
    delay is the policy's cap, and the error says so."""
    try:
        return attempt.retry.delay(attempt.claim.attempts, chance), error
    except Exception as wrong:  # noqa: BLE001
        raised = describe(wrong, attempt.claim.attempts, error.node_id)
        return attempt.retry.cap, msgspec.structs.replace(
            error,
            message=f"{error.message} (and its Retry wait function raised {raised.type}: {raised.message})",
            traceback=f"{error.traceback}\nThen the wait function of its Retry raised:\n{raised.traceback}",
        )


def find_control(error: BaseException) -> Control | None:
    """The control exception (Snooze, Cancel, …) that was raised, even if it is the cause of another exception or in a
    group. None if there is none."""
    return next(_controls(error), None)


def _controls(error: BaseException | None, seen: set[int] | None = None) -> Iterator[Control]:
    seen = set() if seen is None else seen
    while error is not None and id(error) not in seen:  # the causes of exceptions may form a cycle
        seen.add(id(error))
        if isinstance(error, Control):
            yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _controls(member, seen)
        error = error.__cause__


def _of_function(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of the engine before the task function."""
    inner = trace
    while inner is not None and Path(inner.tb_frame.f_code.co_filename).parent == _ENGINE:
        inner = inner.tb_next
    return inner or trace


def describe(error: BaseException, attempt: int, node_id: str | None) -> ErrorRecord:
    """The error as a record, with its message and traceback shortened."""
    text = "".join(traceback.format_exception(type(error), error, _of_function(error.__traceback__)))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  the exception's own __str__ may raise
        message = "(the error could not be printed)"
    return ErrorRecord(
        attempt=attempt,
        type=type(error).__qualname__,
        message=storable(message[:MESSAGE_LENGTH]),
        traceback=storable(text if len(text) <= TRACEBACK_LENGTH else f"…{text[-TRACEBACK_LENGTH:]}"),
        node_id=node_id,
    )


def handed_back(claim: Claim) -> FencedOutcome:
    """The outcome with which the node hands back this claim."""
    return FencedOutcome(
        id=claim.id,
        claim_no=claim.claim_no,
        outcome=HandedBack(),
        limit_key=claim.limit_key,
        group_id=claim.group_id,
        has_dependents=claim.has_dependents,
        kind=claim.kind,
    )
