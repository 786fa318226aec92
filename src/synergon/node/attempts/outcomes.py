"""Builds the outcomes of attempts that did not succeed: from the error or the stop of a task function."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from synergon.errors import Cancel, Control, Discard, PayloadError, RetryAfter, Snooze
from synergon.model.claims import Claim
from synergon.model.lifecycle import Reason
from synergon.model.outcomes import (
    Cancelled,
    ErrorRecord,
    Failed,
    FencedOutcome,
    HandedBack,
    Outcome,
    Retrying,
    Snoozed,
)
from synergon.model.record import storable
from synergon.node.attempts.attempt import Attempt, Stop
from synergon.options.durations import LONGEST_SECONDS, microseconds

_ENGINE: Final = Path(__file__).parent

TRACEBACK_LENGTH: Final = 16_000
MESSAGE_LENGTH: Final = 4_000

PROTECTED_SECONDS: Final = 60.0
"""For how long a task that has yielded is protected from preemption."""


def of_stop(attempt: Attempt, node_id: str, chance: Callable[[], float]) -> Outcome:
    """The outcome of an attempt that ended because it was asked to."""
    match attempt.stop:
        case Stop.TIMEOUT:
            error = ErrorRecord(
                attempt=attempt.claim.attempts,
                type="Timeout",
                message=f"the function ran longer than its timeout of {attempt.timeout:g} s",
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
    """The outcome of a task function that raised."""
    control = find_control(error)
    attempt.is_own_fault = control is not None or isinstance(error, PayloadError)
    match control:
        case Snooze(seconds=seconds):
            return Snoozed(delay=_clamped(seconds))
        case Cancel():
            return Cancelled(why=storable(str(control)) or None)
        case Discard():
            return Failed(reason=Reason.DISCARDED, error=describe(control, attempt.claim.attempts, node_id))
        case RetryAfter(seconds=seconds):
            return _failure(attempt, describe(control, attempt.claim.attempts, node_id), chance, pause=seconds)
        case _:
            return _failure(attempt, describe(error, attempt.claim.attempts, node_id), chance)


def of_record(attempt: Attempt, error: ErrorRecord, chance: Callable[[], float]) -> Outcome:
    """The outcome of a task function that failed in a child process, which described the error."""
    return _failure(attempt, error, chance)


def of_payload_record(error: ErrorRecord) -> Outcome:
    """The outcome of a payload that a child process could not decode."""
    return Failed(reason=Reason.ERROR, error=error)


def of_payload(attempt: Attempt, error: PayloadError, node_id: str) -> Outcome:
    """The outcome of a payload that does not match the task function: it fails at once, because a retry would fail
    too."""
    attempt.is_own_fault = True
    return of_payload_record(describe(error, attempt.claim.attempts, node_id))


def _failure(
    attempt: Attempt,
    error: ErrorRecord,
    chance: Callable[[], float],
    *,
    pause: float | None = None,
    last_reason: Reason | None = None,
) -> Outcome:
    if attempt.claim.attempts < attempt.max_attempts:
        if pause is None:
            pause, error = _pause(attempt, error, chance)
        return Retrying(delay=_clamped(pause), error=error)
    exhausted = Reason.EXHAUSTED if attempt.max_attempts > 1 else Reason.ERROR
    return Failed(reason=last_reason or exhausted, error=error)


def _clamped(pause_seconds: float) -> int:
    return microseconds(min(pause_seconds, LONGEST_SECONDS))


def _pause(attempt: Attempt, error: ErrorRecord, chance: Callable[[], float]) -> tuple[float, ErrorRecord]:
    """The policy's delay before a retry. If the user's `wait` function raises, that is recorded and a default is
    used."""
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
    """The control exception that was raised, even as the cause of another exception or inside a group."""
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
    """The traceback from the task function on, without the frames of the engine."""
    inner = trace
    while inner is not None and Path(inner.tb_frame.f_code.co_filename).parent == _ENGINE:
        inner = inner.tb_next
    return inner or trace


def describe(error: BaseException, attempt: int, node_id: str | None) -> ErrorRecord:
    """The error as a record for people."""
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
    """The outcome of a task that the node hands back, whatever its function did."""
    return FencedOutcome(
        id=claim.id,
        claim_no=claim.claim_no,
        outcome=HandedBack(),
        limit_key=claim.limit_key,
        group_id=claim.group_id,
        kind=claim.kind,
    )
