"""Prunes the history: deletes what is older than the cutoffs."""

from __future__ import annotations

from synergon.model.lifecycle import State
from synergon.model.tasks import Cutoffs
from synergon.stores.session import Session


async def prune(session: Session, cutoffs: Cutoffs, limit: int) -> int:
    """Delete final tasks, rates, operator actions and groups, at most `limit` of each. Returns the number of deleted
    tasks."""
    ages = {
        State.SUCCEEDED: cutoffs.succeeded,
        State.FAILED: cutoffs.failed,
        State.CANCELLED: cutoffs.cancelled,
    }
    pruned = 0
    for state, age in ages.items():
        if age is not None and pruned < limit:
            pruned += await session.tasks.prune(state, age, limit - pruned)
    await session.key_queues.prune_rates(limit)
    if cutoffs.audit is not None:
        await session.audit.prune(cutoffs.audit, limit)
    known = [age for age in ages.values() if age is not None]
    if len(known) == len(ages):  # else some tasks stay for ever, and so do their groups
        await session.groups.prune(max(known), limit)
    return pruned
