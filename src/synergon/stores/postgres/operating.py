"""What the clock, the operators and the reaper do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from synergon.lifecycle import Reason, State
from synergon.records import (
    Cutoffs,
    ErrorRecord,
    Moved,
    Reaped,
    Reprioritizing,
    Rescheduling,
    Woken,
    to_datetime,
)
from synergon.stores.postgres import settling
from synergon.stores.postgres.session import Session


async def wake(session: Session, limit: int) -> Woken:
    """Make due tasks ready, end expired ones, and tell when to look again."""
    expired = [row["id"] for row in await session.rows("expired", limit)]
    if expired:
        await settling.end(session, dict.fromkeys(expired), State.FAILED, Reason.EXPIRED)
    due = Counter(row["kind"] for row in await session.rows("make_due_ready", limit))
    next_in = await session.value("next_moment")
    return Woken(kinds=dict(due), expired=tuple(expired), next_in=None if next_in is None else max(next_in, 0))


async def reap(session: Session, gone: Sequence[str], limit: int) -> list[Reaped]:
    """Take running tasks from the dead."""
    dead = [row["id"] for row in await session.rows("lock_dead", list(gone))]
    reaped = [await _take_back(session, row) for row in await session.rows("orphans", dead, limit)]
    if dead:
        await session.run("forget_dead", dead)
    return reaped


async def _take_back(session: Session, row: Any) -> Reaped:
    node_id = row["node_id"]
    error = ErrorRecord(attempt=0, type="Crash", message=f"node {node_id} died while it ran the task", node_id=node_id)
    state = await settling.crash(session, row, error, by_owner=False)
    return Reaped(id=row["id"], kind=row["kind"], node_id=node_id, state=state, crashes=row["crashes"] + 1)


async def cancel(session: Session, ids: Sequence[int], why: str | None) -> list[Moved]:
    """End what waits, ask what runs."""
    live = {row["id"]: row for row in await session.rows("live", list(ids))}
    return [await _cancel(session, task_id, live.pop(task_id, None), why) for task_id in ids]


async def _cancel(session: Session, task_id: int, row: Any, why: str | None) -> Moved:
    if row is None:
        return await _refused(session, task_id)
    if why is not None and not row["cancel_requested"]:
        error = ErrorRecord(attempt=0, type="Cancel", message=why)
        await session.run("set_errors", task_id, await settling.appended(session, row, error))
    if row["state"] == State.RUNNING:
        await session.run("request_cancel", task_id)
        return Moved(id=task_id, done=True, state=State.RUNNING, kind=row["kind"], node_id=row["node_id"])
    await settling.end(session, {task_id: None}, State.CANCELLED, Reason.CANCELLED)
    return Moved(id=task_id, done=True, state=State.CANCELLED, kind=row["kind"])


async def _refused(session: Session, task_id: int) -> Moved:
    rows = await session.rows("live", [task_id]) or await session.rows("ended", [task_id])
    if not rows:
        return Moved(id=task_id, done=False, state=None)
    return Moved(id=task_id, done=False, state=State(rows[0]["state"]), kind=rows[0]["kind"])


async def retry(session: Session, ids: Sequence[int]) -> list[Moved]:
    """Bring ended tasks back."""
    return [await _retry(session, task_id) for task_id in ids]


async def _retry(session: Session, task_id: int) -> Moved:
    rows = await session.rows("ended", [task_id])
    if not rows:
        return await _refused(session, task_id)
    (row,) = rows
    if await session.value("revive", task_id) is None:
        holder = await session.value("key_holder", row["kind"], row["key"])
        return Moved(id=task_id, done=False, state=State(row["state"]), kind=row["kind"], key_holder=holder)
    await _forget_ended(session, row)
    return Moved(id=task_id, done=True, state=State.READY, kind=row["kind"])


async def _forget_ended(session: Session, row: Any) -> None:
    await session.run("forget_ended", row["id"])
    session.count(row["queue"], row["kind"], row["state"], -1)


async def delete(session: Session, ids: Sequence[int]) -> list[Moved]:
    """Remove what does not run."""
    return [await _delete(session, task_id) for task_id in ids]


async def _delete(session: Session, task_id: int) -> Moved:
    live = await session.rows("live", [task_id])
    if live:
        (row,) = live
        if row["state"] == State.RUNNING:
            return Moved(id=task_id, done=False, state=State.RUNNING, kind=row["kind"], node_id=row["node_id"])
        await session.run("forget", task_id)
        return Moved(id=task_id, done=True, state=None, kind=row["kind"])
    ended = await session.rows("ended", [task_id])
    if not ended:
        return Moved(id=task_id, done=False, state=None)
    await _forget_ended(session, ended[0])
    return Moved(id=task_id, done=True, state=None, kind=ended[0]["kind"])


async def reschedule(session: Session, changes: Sequence[Rescheduling]) -> list[Moved]:
    """Change when tasks are due."""
    return [await _reschedule(session, change) for change in changes]


async def _reschedule(session: Session, change: Rescheduling) -> Moved:
    run_at = to_datetime(change.run_at) if change.run_at is not None else None
    row = await session.row("reschedule", change.id, run_at, change.delay)
    return await _moved(session, change.id, row)


async def set_priority(session: Session, changes: Sequence[Reprioritizing]) -> list[Moved]:
    """Change the order."""
    return [
        await _moved(session, change.id, await session.row("set_priority", change.id, change.priority))
        for change in changes
    ]


async def _moved(session: Session, task_id: int, row: Any) -> Moved:
    if row is None:
        return await _refused(session, task_id)
    return Moved(id=task_id, done=True, state=State(row["state"]), kind=row["kind"])


async def pause(session: Session, queues: Sequence[str]) -> list[bool]:
    """Close queues; one that has had no task yet is closed in advance."""
    await session.run("add_queues", list(queues))
    return [await session.run("pause", queue) == 1 for queue in queues]


async def resume(session: Session, queues: Sequence[str]) -> list[bool]:
    """Open queues again."""
    return [await session.run("resume", queue) == 1 for queue in queues]


async def prune(session: Session, cutoffs: Cutoffs, limit: int) -> int:
    """Forget what ended long ago."""
    pruned = 0
    ages = {
        State.SUCCEEDED: cutoffs.succeeded,
        State.FAILED: cutoffs.failed,
        State.CANCELLED: cutoffs.cancelled,
    }
    for state, age in ages.items():
        if age is None or pruned >= limit:
            continue
        for queue, kind in await session.rows("prune", state, age, limit - pruned):
            session.count(queue, kind, state, -1)
            pruned += 1
    return pruned
