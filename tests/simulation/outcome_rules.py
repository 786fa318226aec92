"""What each outcome may make of its task."""

from __future__ import annotations

from typing import Final, Protocol

from synergon.model.lifecycle import State
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    Failed,
    HandedBack,
    KeyAssigned,
    Outcome,
    Retrying,
    Snoozed,
    Succeeded,
)
from synergon.policies import CRASH_LIMIT

ITS_TURN: Final = {State.READY, State.WAITING}
"""Without a line it is ready, in one it may have to wait."""


class Row(Protocol):
    """As much of a row as an outcome changes."""

    @property
    def state(self) -> State: ...
    @property
    def attempts(self) -> int: ...
    @property
    def crashes(self) -> int: ...


def check_outcome(outcome: Outcome, old: Row, new: Row) -> str | None:
    """What is wrong with the way from `old` to `new`; None: nothing."""
    attempts, crashes = new.attempts - old.attempts, new.crashes - old.crashes
    is_free = isinstance(outcome, Snoozed | HandedBack | Crashed | KeyAssigned)
    if attempts != (-1 if is_free else 0):
        return f"{_name(outcome)} changed its attempts by {attempts}"
    if crashes != isinstance(outcome, Crashed):
        return f"{_name(outcome)} changed its crashes by {crashes}"
    if new.state is not State.CANCELLED and new.state not in _targets(outcome, new):
        return f"{_name(outcome)} made it {new.state}"
    return None


def _targets(outcome: Outcome, new: Row) -> set[State]:
    match outcome:
        case Succeeded():
            return {State.SUCCEEDED}
        case Failed():
            return {State.FAILED}
        case Cancelled():
            return {State.CANCELLED}
        case Retrying() | Snoozed() | HandedBack():
            return {State.SCHEDULED, *ITS_TURN}
        case KeyAssigned():
            return {State.SCHEDULED, *ITS_TURN}
        case Crashed():
            return {State.FAILED} if new.crashes == CRASH_LIMIT else {State.SCHEDULED, *ITS_TURN}


def _name(outcome: Outcome) -> str:
    return type(outcome).__name__
