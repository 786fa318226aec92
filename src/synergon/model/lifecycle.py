"""The states of a task, and the table of legal changes of state.

Stores make each change with one guarded statement. The guards agree with this table: the conformance suite and the
model test compare every store with it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """The state of a task. The last three are final."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether a task in this state has ended."""
        return self in FINAL


class Reason(StrEnum):
    """Why a task ended as it did. Only final tasks that did not succeed have a reason."""

    ERROR = "error"
    """The task function failed and its policy allows only one attempt, or the payload does not match the function."""
    EXHAUSTED = "exhausted"
    """The task function failed as often as its policy allows."""
    TIMEOUT = "timeout"
    """The last allowed attempt ran past its deadline."""
    CRASHED = "crashed"
    """Its child process died `CRASH_LIMIT` times, or `OWNER_DEATH_LIMIT` nodes died, while they ran the task."""
    EXPIRED = "expired"
    """The task had not started when its `expires_in` was over."""
    DISCARDED = "discarded"
    """The task function raised `Discard`."""
    CANCELLED = "cancelled"
    """A cancellation was requested, or the task function raised `Cancel`."""
    DEPENDENCY = "dependency"
    """A task that it depends on did not succeed."""


FINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
LIVE: Final = frozenset(State) - FINAL
WAITING_STATES: Final = LIVE - {State.RUNNING}
"""The live states except `running`. Tasks in them can be cancelled, deleted or expire at once."""

MOVES: Final[dict[State, frozenset[State]]] = {
    # due, reschedule, cancel, expiry, a full key queue, a rate; a claim makes the tasks of a batch ready and takes them
    State.WAITING: frozenset({State.READY, State.RUNNING, State.SCHEDULED, State.CANCELLED, State.FAILED}),
    State.SCHEDULED: frozenset({State.READY, State.WAITING, State.CANCELLED, State.FAILED}),
    State.READY: frozenset({State.RUNNING, State.SCHEDULED, State.WAITING, State.CANCELLED, State.FAILED}),
    # completer and reaper
    State.RUNNING: frozenset(
        {State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SCHEDULED, State.READY, State.WAITING}
    ),
    # operator's retry
    State.SUCCEEDED: frozenset({State.READY, State.WAITING}),
    State.FAILED: frozenset({State.READY, State.WAITING}),
    State.CANCELLED: frozenset({State.READY, State.WAITING}),
}


def is_legal(source: State, target: State) -> bool:
    """Whether a task may change from `source` to `target`."""
    return target in MOVES[source]


def clears_suspicion(state: State, reason: Reason | None) -> bool:
    """Whether a task in this state is no suspect, because an attempt of it has ended without a crash."""
    if state is State.FAILED:
        return reason not in (Reason.CRASHED, Reason.EXPIRED)
    return state is State.SUCCEEDED
