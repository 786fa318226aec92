"""What each outcome may make of its task."""

from __future__ import annotations

from typing import Final, Protocol

from synergon.model.lifecycle import FINAL, State
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
    Succeeded,
)
from synergon.policies import CRASH_LIMIT, SERVER_FAILURE_LIMIT

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
    @property
    def owner_deaths(self) -> int: ...
    @property
    def server_failures(self) -> int: ...
    @property
    def is_suspect(self) -> bool: ...


def check_outcome(outcome: Outcome, old: Row, new: Row) -> str | None:
    """What is wrong with the way from `old` to `new`; None: nothing."""
    if isinstance(outcome, ServerFault) and old.server_failures >= SERVER_FAILURE_LIMIT:
        outcome = outcome.otherwise
    attempts, crashes = new.attempts - old.attempts, new.crashes - old.crashes
    blamed = new.server_failures - old.server_failures
    if blamed != (isinstance(outcome, ServerFault) and new.state is not State.CANCELLED):
        return f"{_name(outcome)} changed its server failures by {blamed}"
    is_free = isinstance(outcome, Snoozed | HandedBack | Crashed | KeyAssigned | Refused | ServerFault)
    if attempts != (-1 if is_free else 0):
        return f"{_name(outcome)} changed its attempts by {attempts}"
    is_shared = isinstance(outcome, Crashed) and outcome.is_shared
    if crashes != (isinstance(outcome, Crashed) and not is_shared):
        return f"{_name(outcome)} changed its crashes by {crashes}"
    is_over = not isinstance(outcome, HandedBack | KeyAssigned)
    if new.state not in FINAL and (new.owner_deaths, new.is_suspect) != (
        (0, is_shared or new.crashes > 0) if is_over else (old.owner_deaths, old.is_suspect)
    ):
        return f"{_name(outcome)} left {new.owner_deaths} deaths and is_suspect={new.is_suspect}"
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
        case ServerFault():  # later if it has tried all servers
            return {State.SCHEDULED, *ITS_TURN}
        case Refused():  # the auditor knows which of the two
            return {State.FAILED, *ITS_TURN}
        case Crashed():
            return {State.FAILED} if new.crashes == CRASH_LIMIT else {State.SCHEDULED, *ITS_TURN}


def _name(outcome: Outcome) -> str:
    return type(outcome).__name__
