"""Prunes the history: deletes rows that are older than the cutoffs."""

from __future__ import annotations

from synergon.model.lifecycle import State
from synergon.model.tasks import Cutoffs
from synergon.stores.session import Session


async def prune(session: Session, cutoffs: Cutoffs, limit: int) -> int:
    """Delete at most `limit` each of final tasks, rates, operator actions and groups. Returns the number of tasks."""
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
