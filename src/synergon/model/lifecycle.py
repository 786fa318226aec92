"""The states of a task and the one table of legal moves.

Stores make each move with one guarded statement. This table is what those guards must agree with: the
conformance suite and the model test compare every store against it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a task is. The last three are final."""

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
    """Why a task ended as it did; only final tasks that did not succeed carry one."""

    ERROR = "error"
    """The body failed and its policy allows one attempt only, or its payload does not fit."""
    EXHAUSTED = "exhausted"
    """The body failed as often as its policy allows."""
    TIMEOUT = "timeout"
    """The last allowed attempt ran past its deadline."""
    CRASHED = "crashed"
    """The process died under it as often as is allowed."""
    EXPIRED = "expired"
    """It had not started when its `expires_in` was over."""
    DISCARDED = "discarded"
    """The body raised `Discard`."""
    CANCELLED = "cancelled"
    """Somebody cancelled it, or the body raised `Cancel`."""


FINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
LIVE: Final = frozenset(State) - FINAL
WAITING_STATES: Final = LIVE - {State.RUNNING}
"""Live, and not running: what cancel, expiry and delete may take at once."""

MOVES: Final[dict[State, frozenset[State]]] = {
    # due, reschedule, cancel, expiry, a line without room, the turn that a rate gives
    State.WAITING: frozenset({State.READY, State.SCHEDULED, State.CANCELLED, State.FAILED}),
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
    """Whether a task may go from `source` to `target`."""
    return target in MOVES[source]
