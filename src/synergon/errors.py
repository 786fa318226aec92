"""The exception tree. Every message says what happened, with which value, and what to do now.

SynergonError
├── ConfigurationError (ValueError)   the mistake is in the code or settings; raised where it is made
│   ├── OptionError                   an option is unknown, misspelt or has a bad value
│   ├── KindError                     a kind is unknown, or registered twice
│   └── NotAvailable                  a feature that this release, store or place does not have
├── PayloadError (ValueError)         arguments or results that do not fit, are no JSON, or are too large
├── StoreError                        the store could not do what was asked
│   ├── StoreUnavailable              it is away, locked, full or read-only: trying again may help
│   ├── DataRejected                  it will not take this value, today or tomorrow
│   └── SchemaError                   its schema is missing, older or newer than this code
├── TaskError                         about one task; has `.task_id`
│   ├── TaskNotFound, TaskDeleted
│   ├── KeyConflict                   a live task holds the unique key
│   ├── IllegalMove                   the task is not in a state from which that move is legal
│   ├── TaskFailed, TaskCancelled     the final state, as `handle.result()` tells it; have `.record`
├── CommandsFailed                    a command sent to each server; has `.results` and `.errors` by address
├── EventsLost                        a stream of events has been away for longer than the history is kept
├── ResultTimeout (TimeoutError)      the task goes on, only the waiting ended
├── LeaseLost                         this node may not act any more under its present id
└── NotConnected                      the engine is not connected, or is being closed

Control                               raised by a body to say how it wants to end; not errors
├── RetryAfter, Snooze, Discard, Cancel
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from synergon.model.task_records import TaskRecord


class SynergonError(Exception):
    """The root of everything that synergon raises."""


class ConfigurationError(SynergonError, ValueError):
    """A mistake in code or settings, raised where it is made."""


class OptionError(ConfigurationError):
    """An option is unknown, misspelt, or has a value that makes no sense."""


class KindError(ConfigurationError):
    """A kind is not known, or two functions claim it."""


class NotAvailable(ConfigurationError):
    """A feature that this release, this store or this place does not have."""


class PayloadError(SynergonError, ValueError):
    """Arguments or a result that do not fit the signature, cannot be JSON, or are too large."""


class StoreError(SynergonError):
    """The store could not do what was asked, and trying again will not help."""


class StoreUnavailable(StoreError):
    """The store is away, locked, full or read-only; the same call may succeed later."""


class DataRejected(StoreError):
    """The store will not take what it was given: the value itself is at fault, and would be rejected again."""


class SchemaError(StoreError):
    """The database's schema is missing, older or newer than this code."""


class TaskError(SynergonError):
    """About one task."""

    def __init__(self, message: str, task_id: int) -> None:
        super().__init__(message)
        self.task_id = task_id


class TaskNotFound(TaskError):
    """No task has this id: it never existed, was deleted, or its history was pruned."""


class TaskDeleted(TaskError):
    """There is nothing to wait for: the task was deleted, or its history was pruned before anybody asked."""

    @classmethod
    def of(cls, task_id: int) -> Self:
        """With what may have become of it, since it has left nothing behind that could tell."""
        return cls(
            f"task {task_id} does not exist: it was deleted, or it has ended and its history was kept no longer "
            "(see Retention)",
            task_id,
        )


class KeyConflict(TaskError):
    """A live task of this kind already holds the unique key; `task_id` is that task."""


class IllegalMove(TaskError):
    """The task is not in a state from which this move is legal."""


class FinalStateError(TaskError):
    """A waiter asked for a result, and the task ended without one."""

    def __init__(self, message: str, record: TaskRecord) -> None:
        super().__init__(message, record.id)
        self.record = record


class TaskFailed(FinalStateError):
    """The task ended `failed`; `record.reason` and `record.errors` say why."""


class TaskCancelled(FinalStateError):
    """The task ended `cancelled`."""


class CommandsFailed(SynergonError):
    """A command that was sent to each server failed on some of them."""

    def __init__(self, message: str, results: dict[str, Any], errors: dict[str, TaskError]) -> None:
        super().__init__(message)
        self.results = results
        """What it returned, by address, where it did not fail."""
        self.errors = errors


class EventsLost(SynergonError):
    """Ends that a stream of events had yet to give were pruned from the history."""


class ResultTimeout(SynergonError, TimeoutError):
    """The waiting ended before the task did; the task goes on."""


class LeaseLost(SynergonError):
    """This node id has no lease any more, so nothing may be done in its name."""


class NotConnected(SynergonError):
    """The engine is not connected to its store, or is being closed."""


class Control(Exception):
    """Raised by a body to say how it wants to end. Found also as a cause or inside an exception group."""


class RetryAfter(Control):
    """Run again after `seconds`; counts as a failed attempt, so the budget still holds."""

    def __init__(self, seconds: float, why: str = "") -> None:
        super().__init__(why or f"retry after {seconds} s")
        self.seconds = check_pause(seconds, "RetryAfter")


class Snooze(Control):
    """Run again after `seconds`; costs no attempt."""

    def __init__(self, seconds: float, why: str = "") -> None:
        super().__init__(why or f"snooze for {seconds} s")
        self.seconds = check_pause(seconds, "Snooze")


class Discard(Control):
    """End `failed` with reason `discarded`: no retry will help."""


class Cancel(Control):
    """End `cancelled`, by the body's own wish."""


def check_pause(seconds: float, where: str) -> float:
    """The pause as a float, or the error that names it."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise OptionError(f"{where} takes a number of seconds that is not negative, got {seconds!r}")
    return float(seconds)
