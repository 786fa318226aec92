"""What a statement may make of the noted attempts of a task."""

from __future__ import annotations

from typing import Protocol

from synergon.model.attempts import MOST_ATTEMPTS_STORED, AttemptOutcome, AttemptRecord
from synergon.model.lifecycle import State

Noted = tuple[AttemptRecord, ...]


class Row(Protocol):
    """As much of a row as says which attempt ran, and what is noted of those before."""

    @property
    def state(self) -> State: ...
    @property
    def claim_no(self) -> int: ...
    @property
    def node_id(self) -> str | None: ...
    @property
    def ended_attempts(self) -> Noted: ...


def check_attempts(name: str, old: Row, new: Row) -> str | None:
    """What is wrong with the noted attempts after a statement; None: nothing."""
    before, after = old.ended_attempts, new.ended_attempts
    if name == "insert":
        return None  # a replaced task begins anew
    if old.state is State.RUNNING and new.state is not State.RUNNING and new.state is not State.SUCCEEDED:
        return _check_added(old, before, after, AttemptOutcome.SUCCEEDED, is_equal=False)
    if name == "retry" and old.state is State.SUCCEEDED:
        return _check_added(old, before, after, AttemptOutcome.SUCCEEDED, is_equal=True)
    return None if before == after else f"{name} changed its noted attempts"


def _check_added(old: Row, before: Noted, after: Noted, outcome: AttemptOutcome, *, is_equal: bool) -> str | None:
    if not after or after[-1].claim_no != old.claim_no:
        return f"the end of claim {old.claim_no} is not noted"
    if after[:-1] != before[-(MOST_ATTEMPTS_STORED - 1) :]:
        return "earlier attempts are lost"
    if after[-1].node_id != old.node_id:
        return f"claim {old.claim_no} is noted for node {after[-1].node_id}"
    if (after[-1].outcome is outcome) is not is_equal:
        return f"claim {old.claim_no} is noted as {after[-1].outcome}"
    return None
