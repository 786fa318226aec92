"""From an attempt and its outcome to what the store is told."""

from __future__ import annotations

from synergon.model.claims import Claim
from synergon.model.outcomes import Failed, FencedOutcome, HandedBack, Outcome, Retrying, Succeeded
from synergon.node.attempts.attempt import Attempt


def handed_back(claim: Claim) -> FencedOutcome:
    """The node gives it back, whatever became of its body."""
    return FencedOutcome(
        id=claim.id,
        claim_no=claim.claim_no,
        outcome=HandedBack(),
        limit_key=claim.limit_key,
        group_id=claim.group_id,
        kind=claim.kind,
    )


def fenced_outcome(attempt: Attempt, outcome: Outcome) -> FencedOutcome:
    """Addressed by the attempt's fence."""
    claim = attempt.claim
    if not attempt.task_type.is_limited and claim.group_id is None:
        return FencedOutcome(id=claim.id, claim_no=claim.claim_no, outcome=outcome, progress=attempt.progress)
    is_well = None if attempt.server is None else _is_server_well(attempt, outcome)
    return FencedOutcome(
        id=claim.id,
        claim_no=claim.claim_no,
        outcome=outcome,
        progress=attempt.progress,
        limit_key=claim.limit_key,
        group_id=claim.group_id,
        server=(attempt.server.provider, attempt.server.address) if attempt.server and is_well is not None else None,
        is_server_well=is_well is not False,
        slot=claim.slot,
        kind=claim.kind,
    )


def _is_server_well(attempt: Attempt, outcome: Outcome) -> bool | None:
    """What an outcome says of the server; None: nothing."""
    match outcome:
        case Succeeded():
            return True
        case Failed() | Retrying():
            return None if attempt.is_own_fault else False
        case _:  # a crash is our process's, everything else the task's
            return None
