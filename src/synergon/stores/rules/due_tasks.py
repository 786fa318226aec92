"""Due and expired tasks: moves due tasks to `ready` or their key queue, makes due batches ready, and ends tasks that
were not started in time."""

from __future__ import annotations

from collections import Counter

from synergon.model.lifecycle import Reason, State
from synergon.model.tasks import Woken
from synergon.stores.rules import dependencies, ends, follow_ups
from synergon.stores.session import Session


async def wake(session: Session, limit: int) -> Woken:
    """Make due tasks ready, end expired ones, and return when to call `wake` again."""
    await session.locks.for_due_tasks(limit)
    # Expired tasks first: none of them may be announced as ready.
    expired = await session.tasks.expired(limit)
    if expired:
        await ends.end(session, expired, State.FAILED, Reason.EXPIRED)
    await dependencies.settle(session, limit)
    due = await session.tasks.make_due_ready(limit)
    for changed in due:
        session.touched.add_changed(changed)
    session.touched.key_queues.update(await session.key_queues.due_alarms(limit))
    ready = {changed.id: changed.kind for changed in due if changed.state is State.READY}
    moves = await follow_ups.apply_follow_ups(session)
    ready.update((task_id, kind) for task_id, (kind, state) in moves.items() if state is State.READY)
    return Woken(
        kinds=dict(Counter(ready.values())),
        expired=tuple(task.id for task in expired) + follow_ups.summary(moves).ended,
        next_in=await session.tasks.next_due_in(),
    )
