"""Ends tasks: the one way by which rules move live tasks to the history, or delete them.

Each end is noted in `session.touched`, so that `follow_ups.apply_follow_ups` updates the key queue, the group and the
dependents of the task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synergon.model.dependencies import DELETED
from synergon.model.lifecycle import Reason, State
from synergon.stores.rows import LiveTask
from synergon.stores.session import Session
from synergon.stores.task_primitives import NO_RESULTS


async def end(
    session: Session,
    tasks: Sequence[LiveTask],
    state: State,
    reason: Reason | None,
    *,
    results: Mapping[int, bytes | None] = NO_RESULTS,
    by_owner: bool = False,
) -> None:
    """Move live tasks to the history. `by_owner`: the node that claimed the tasks ends them."""
    await session.tasks.end(tasks, state, reason, results=results, by_owner=by_owner)
    for task in tasks:
        session.touched.add_ended(task, state)


async def delete(session: Session, task: LiveTask) -> None:
    """Delete a live task that is not running. For the tasks that depend on it, it has ended without success."""
    await session.tasks.delete(task.id)
    if task.has_dependencies:
        await session.dependencies.delete_of([task.id])
    session.touched.add_ended(task, DELETED)
