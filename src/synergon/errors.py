"""The exception tree. Every message says what happened, with which value, and what to do now.

SynergonError
├── ConfigurationError (ValueError)   the mistake is in the code or settings; raised where it is made
│   ├── OptionError                   an option is unknown, misspelt or has a bad value
│   │   └── NameNotFound              no limit, provider or node of that name
│   ├── KindError                     a kind is unknown, or registered twice
│   └── NotAvailable                  a feature that this release, store or platform does not have
├── PayloadError (ValueError)         arguments or results that do not match, cannot be JSON, or are too large
├── StoreError                        the store could not do what was asked
│   ├── StoreUnavailable              it is away, locked, full or read-only: trying again may help
│   ├── DataRejected                  it will not take this value, today or tomorrow
│   ├── PermissionDenied              the role of this engine in the database lacks a right
│   └── SchemaError                   its schema is missing, older or newer than this code
├── TaskError                         about one task; has `.task_id`
│   ├── TaskNotFound, TaskDeleted
│   ├── KeyConflict                   a live task holds the unique key
│   ├── IllegalMove                   the task is not in a state from which that move is legal
│   ├── TaskFailed, TaskCancelled     the final state, as `handle.result()` tells it; have `.record`
├── ScheduleError                     about one schedule; has `.name`
│   ├── ScheduleNotFound, ScheduleExists
├── BatchErrors                       raised by a task function of a batch: `.errors` has the failed items by index
├── CommandsFailed                    a command sent to each server; has `.results` and `.errors` by address
├── EventsLost                        events were pruned before the stream had read them
├── ResultTimeout (TimeoutError)      only the wait has ended; the task continues
├── LeaseLost                         this node id has no live lease
└── NotConnected                      the engine is not connected, or is being closed

Control                               raised by a task function to decide how its attempt ends; not errors
├── RetryAfter, Snooze, Discard, Cancel, ServerFailed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from synergon.model.task_records import TaskRecord


class SynergonError(Exception):
    """The base class of all errors of synergon."""


class ConfigurationError(SynergonError, ValueError):
    """A mistake in code or settings. It is raised where the mistake is made."""


class OptionError(ConfigurationError):
    """An option is unknown, misspelt, or has an invalid value."""


class NameNotFound(OptionError):
    """No limit, provider or node of this name or id is known."""


class KindError(ConfigurationError):
    """A kind is unknown, or two functions are registered for it."""


class NotAvailable(ConfigurationError):
    """A feature that this release, store or platform does not have."""


class PayloadError(SynergonError, ValueError):
    """Arguments or a result that do not match the signature, cannot be JSON, or are too large."""


class StoreError(SynergonError):
    """The store could not carry out the call, and another attempt would fail, too."""


class StoreUnavailable(StoreError):
    """The store is unavailable, locked, full or read-only. Another attempt may succeed later."""


class DataRejected(StoreError):
    """The store rejects a value, and would always reject it."""


class PermissionDenied(StoreError):
    """The role under which the engine is connected lacks a right in the database."""


class SchemaError(StoreError):
    """The database's schema is missing, or older or newer than this code needs."""


class TaskError(SynergonError):
    """The base class of errors about one task."""

    def __init__(self, message: str, task_id: int) -> None:
        super().__init__(message)
        self.task_id = task_id


class TaskNotFound(TaskError):
    """No task has this id: it never existed, was deleted, or its history was pruned."""


class TaskDeleted(TaskError):
    """The task for which a caller waits was deleted, or its history was pruned before it was read."""

    @classmethod
    def of(cls, task_id: int) -> Self:
        """The error for this task, with all possible causes in its message: a deleted task leaves no record."""
        return cls(
            f"task {task_id} does not exist: it was deleted, or it has ended and its history was kept no longer "
            "(see Retention)",
            task_id,
        )


class KeyConflict(TaskError):
    """A live task of this kind holds the unique key. `task_id` is the id of that task; 0 if another task of this call
    has the key."""


class IllegalMove(TaskError):
    """The state of the task does not allow this operation."""


class FinalStateError(TaskError):
    """The base class of errors for a task that ended without a result."""

    def __init__(self, message: str, record: TaskRecord) -> None:
        super().__init__(message, record.id)
        self.record = record


class TaskFailed(FinalStateError):
    """The task ended `failed`. `record.reason` and `record.errors` say why."""


class TaskCancelled(FinalStateError):
    """The task ended `cancelled`."""


class ScheduleError(SynergonError):
    """The base class of errors about one schedule."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class ScheduleNotFound(ScheduleError):
    """No schedule has this name."""


class ScheduleExists(ScheduleError):
    """A schedule with this name exists already."""


class BatchErrors(SynergonError):
    """Raised by the task function of a batch: some of its items have failed, and all others have succeeded.

    An error may be any exception. A control exception (`RetryAfter`, `Snooze`, `Discard`, `Cancel`) decides how the
    attempt of that item ends.
    """

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        if not isinstance(errors, Mapping):
            raise OptionError(f"BatchErrors takes errors by the index of their item, like {{0: error}}, got {errors!r}")
        for index, error in errors.items():
            if isinstance(index, bool) or not isinstance(index, int) or index < 0:
                raise OptionError(f"BatchErrors takes errors by the index of their item, got the index {index!r}")
            if not isinstance(error, BaseException):
                raise OptionError(f"BatchErrors takes an exception for each index, got {error!r} for {index}")
        if not errors:
            raise OptionError("BatchErrors takes at least one error; if no item has failed, return")
        some = ", ".join(f"{index}: {type(error).__name__}" for index, error in sorted(errors.items())[:3])
        super().__init__(f"{len(errors)} items of the batch failed ({some}{', …' if len(errors) > 3 else ''})")
        self.errors: dict[int, BaseException] = dict(errors)
        """The errors by the index of the failed item in the list that the task function got."""


class CommandsFailed(SynergonError):
    """A command that was sent to each server failed on some of them."""

    def __init__(self, message: str, results: dict[str, Any], errors: dict[str, TaskError]) -> None:
        super().__init__(message)
        self.results = results
        """The results by address, for the servers on which the command succeeded."""
        self.errors = errors


class EventsLost(SynergonError):
    """Events that a stream had not read yet were pruned from the history."""


class ResultTimeout(SynergonError, TimeoutError):
    """The wait ended before the task did. The task continues."""


class LeaseLost(SynergonError):
    """This node id has no live lease, so it may not claim."""


class NotConnected(SynergonError):
    """The engine is not connected to its store, or is being closed."""


class Control(Exception):
    """Raised by a task function to decide how its attempt ends. It also takes effect as a cause of another exception,
    or inside an exception group."""


class RetryAfter(Control):
    """Run the task again after `seconds`. Counts as a failed attempt."""

    def __init__(self, seconds: float, why: str = "") -> None:
        super().__init__(why or f"retry after {seconds} s")
        self.seconds: float = check_pause(seconds, "RetryAfter")


class Snooze(Control):
    """Run the task again after `seconds`. Does not count as an attempt."""

    def __init__(self, seconds: float, why: str = "") -> None:
        super().__init__(why or f"snooze for {seconds} s")
        self.seconds: float = check_pause(seconds, "Snooze")


class Discard(Control):
    """End the task `failed` with the reason `discarded`, without a retry."""


class Cancel(Control):
    """End the task `cancelled`."""


class ServerFailed(Control):
    """Blame the server on which the task runs, and run the task again, on another server if there is one; otherwise
    after a delay that grows.

    Counts against the health of the server, and not as an attempt of the task. After `SERVER_FAILURE_LIMIT` (10) of
    them, and in a task without a server, it is an ordinary error.
    """


def check_pause(seconds: float, where: str) -> float:
    """Check a delay and convert it to a float."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise OptionError(f"{where} takes a number of seconds that is not negative, got {seconds!r}")
    return float(seconds)
