"""Due and expired tasks: moves due tasks to `ready`, and ends tasks that were not started in time."""

from __future__ import annotations

from collections import Counter

from synergon.model.lifecycle import Reason, State
from synergon.model.tasks import Woken
from synergon.stores.rules import follow_ups
from synergon.stores.session import Session


async def wake(session: Session, limit: int) -> Woken:
    """Make due tasks ready, end expired ones, and return when the next task is due."""
    await session.locks.for_due_tasks(limit)
    # Expired tasks first: none of them may be announced as ready.
    expired = await session.tasks.expired(limit)
    if expired:
        await session.tasks.end(expired, State.FAILED, Reason.EXPIRED)
    due = await session.tasks.make_due_ready(limit)
    for task in expired:
        session.touched.add(task.kind, task.limit_key, task.group_id)
    for changed in due:
        session.touched.add(changed.kind, changed.limit_key)
    ready = {changed.id: changed.kind for changed in due if changed.state is State.READY}
    for task_id, (kind, state) in (await follow_ups.apply_follow_ups(session)).items():
        if state is State.READY:
            ready[task_id] = kind
    return Woken(
        kinds=dict(Counter(ready.values())),
        expired=tuple(task.id for task in expired),
        next_in=await session.tasks.next_due_in(),
    )
