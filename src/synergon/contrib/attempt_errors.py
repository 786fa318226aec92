"""Finds the errors of an attempt that are worth a report. The middleware for traces and for error reports uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from synergon.context import Context
from synergon.errors import BatchErrors, RetryAfter
from synergon.model.attempts import BatchItem
from synergon.model.lifecycle import Reason
from synergon.model.outcomes import Crashed, ErrorRecord, Failed, Retrying
from synergon.node.attempts.middleware import ChildFunctionEnded
from synergon.node.attempts.outcomes import describe, find_control


class AttemptError(NamedTuple):
    """An error of a task function."""

    item: BatchItem
    """The task that failed; the first item if the whole batch failed."""
    error: BaseException | ErrorRecord
    """The error; a record of it if the function ran in a child process."""

    @property
    def record(self) -> ErrorRecord:
        """Type, message and traceback of the error."""
        return self.error if isinstance(self.error, ErrorRecord) else describe(self.error, self.item.attempt, None)


def errors_of(ctx: Context, error: BaseException) -> Iterator[AttemptError]:
    """Yield the errors of an attempt whose `call_next` raised `error`: the error of the task function, a timeout, or
    the crash of a child process; several if items of a batch failed on their own. Yields nothing for a cancellation, a
    worker that stops, and `RetryAfter`, `Snooze`, `Discard` or `Cancel`."""
    item, stop = ctx.items[0], ctx.stopped_by
    if isinstance(error, ChildFunctionEnded):
        record = _error_of_child(error)
        if record is not None:
            yield AttemptError(item, record)
    elif stop == "timeout":
        message = "the function ran longer than its timeout"
        yield AttemptError(item, ErrorRecord(attempt=item.attempt, type="Timeout", message=message))
    elif stop is not None:  # that is the outcome, whatever was raised
        return
    elif isinstance(error, BatchErrors):
        for index, own in error.errors.items():
            if index < len(ctx.items) and find_control(own) is None:
                yield AttemptError(ctx.items[index], own)
    elif isinstance(error, Exception) and find_control(error) is None:
        yield AttemptError(item, error)


def _error_of_child(ended: ChildFunctionEnded) -> ErrorRecord | None:
    match ended.outcome:
        case Failed(reason=Reason.DISCARDED):
            return None
        case Failed(error=error) | Retrying(error=error) | Crashed(error=error):
            return None if error.type == RetryAfter.__name__ else error
        case _:
            return None
