"""Prunes the history: deletes what is older than the cutoffs."""

from __future__ import annotations

from typing import Final

from synergon.model.lifecycle import State
from synergon.model.tasks import Cutoffs
from synergon.stores.session import Session

GROUPS_AT_ONCE: Final = 100
"""How many groups and flows are deleted by one statement, with their tasks."""


async def prune(session: Session, cutoffs: Cutoffs, limit: int) -> int:
    """Delete final tasks, rates, holds of keys, statistics, operator actions and names of nodes. Returns the number of
    deleted tasks.

    Goes through the states one after the other until `limit` tasks are deleted. Of each state it deletes tasks outside
    of groups, oldest first, and then groups and flows that ended in that state. A group or a flow is deleted as a
    whole, so the number may exceed `limit`; a number below `limit` says that nothing old is left. A task outside of
    groups with `keep_for` is deleted by that age, whatever the cutoffs.

    These remain however old they are: a task that a live one depends on; a group or a flow with a live task, with a
    live task that follows it, or with a task that a live one depends on. A hold that has not expired outlives its task.
    """
    ages = {
        State.SUCCEEDED: cutoffs.succeeded,
        State.FAILED: cutoffs.failed,
        State.CANCELLED: cutoffs.cancelled,
    }
    pruned = 0
    for state, age in ages.items():
        if age is not None and pruned < limit:
            pruned += await session.tasks.prune(state, age, limit - pruned)
            pruned += await _prune_groups(session, state, age, limit - pruned)
    for keep_for in await session.tasks.keeps():
        if pruned < limit:
            pruned += await session.tasks.prune_by_keep_for(keep_for, limit - pruned)
    await session.key_queues.prune_rates(limit)
    await session.key_holds.prune(limit)
    if cutoffs.statistics is not None:
        await session.statistics.prune(cutoffs.statistics, limit)
    if cutoffs.audit is not None:
        await session.audit.prune(cutoffs.audit, limit)
    longest = [cutoffs.audit, *ages.values()]
    if None not in longest:  # the nodes of tasks that remain
        await session.nodes.prune_names(max(age for age in longest if age is not None), limit)
    return pruned


async def _prune_groups(session: Session, state: State, age: int, limit: int) -> int:
    """Delete groups and flows until `limit` tasks are deleted with them. Returns the number of these tasks."""
    pruned = 0
    while pruned < limit and (ids := await session.groups.old(state, age, GROUPS_AT_ONCE)):
        await session.locks.groups(ids)
        pruned += await session.tasks.prune_groups(ids)
        await session.groups.delete(ids)
    return pruned
