"""What the clock, the operators and the reaper do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord
from synergon.model.record import to_datetime
from synergon.model.tasks import Cutoffs, Moved, Reaped, Reprioritizing, Rescheduling, Woken
from synergon.stores.postgres import finish
from synergon.stores.postgres.final_events import note_pruned
from synergon.stores.postgres.follow_ups import draw
from synergon.stores.postgres.key_queues import touch_queue
from synergon.stores.postgres.lock_order import lock, lock_all_key_queues, lock_bonds_of
from synergon.stores.postgres.session import Moves, Session


async def wake(session: Session, limit: int) -> Woken:
    """Make due tasks ready, end expired ones, and tell when to look again."""
    await lock(session, await session.rows("due_bonds", limit))
    expired = await session.rows("expired", limit)
    if expired:
        for row in expired:
            session.touch(row["kind"], row["limit_key"], row["group_id"])
        await finish.end(session, {row["id"]: None for row in expired}, State.FAILED, Reason.EXPIRED)
    due = await session.rows("make_due_ready", limit)
    ready = Counter(row["kind"] for row in due if row["limit_key"] is None)
    session.key_queues.update((row["kind"], row["limit_key"]) for row in due if row["limit_key"] is not None)
    ready.update(kind for kind, state in (await draw(session)).values() if state is State.READY)
    next_in = await session.value("next_moment")
    return Woken(
        kinds=dict(ready),
        expired=tuple(row["id"] for row in expired),
        next_in=None if next_in is None else max(next_in, 0),
    )


async def reap(session: Session, gone: Sequence[str], limit: int) -> list[Reaped]:
    """Take running tasks from the dead."""
    await lock(session, await session.rows("dead_bonds", list(gone), limit))
    dead = {row["id"]: row["is_stopping"] for row in await session.rows("lock_dead", list(gone))}
    reaped = [
        await _take_back(session, row, was_stopping=dead.get(row["node_id"], False))
        for row in await session.rows("orphans", list(dead), limit)
    ]
    moves = await draw(session)
    if dead:
        await session.run("forget_dead", list(dead))
    own = {entry.id for entry in reaped}
    released = tuple(kind for task_id, (kind, state) in moves.items() if state is State.READY and task_id not in own)
    told = [replace(entry, state=moves[entry.id][1]) if entry.id in moves else entry for entry in reaped]
    return [*told[:-1], replace(told[-1], released=released)] if released and told else told


async def _take_back(session: Session, row: Any, *, was_stopping: bool) -> Reaped:
    node_id = row["node_id"]
    crashes = row["crashes"] if was_stopping and not row["is_command"] else row["crashes"] + 1
    message = f"node {node_id} died while it ran the task"
    error = ErrorRecord(attempt=0, type="Crash", message=message, node_id=node_id)
    state = await finish.take_back(session, row, error, crashes)
    return Reaped(id=row["id"], kind=row["kind"], node_id=node_id, state=state, crashes=crashes)


async def cancel(session: Session, ids: Sequence[int], why: str | None) -> list[Moved]:
    """End what waits, ask what runs."""
    await lock_bonds_of(session, ids)
    live = {row["id"]: row for row in await session.rows("live", list(ids))}
    moved = [await _cancel(session, task_id, live.pop(task_id, None), why) for task_id in ids]
    await draw(session)
    return moved


async def _cancel(session: Session, task_id: int, row: Any, why: str | None) -> Moved:
    if row is None:
        return await _rejected(session, task_id)
    if why is not None and not row["cancel_requested"]:
        error = ErrorRecord(attempt=0, type="Cancel", message=why)
        await session.run("set_errors", task_id, await finish.appended(session, row, error))
    if row["state"] == State.RUNNING:
        await session.run("request_cancel", task_id)
        return Moved(id=task_id, done=True, state=State.RUNNING, kind=row["kind"], node_id=row["node_id"])
    session.touch(row["kind"], row["limit_key"], row["group_id"])
    await finish.end(session, {task_id: None}, State.CANCELLED, Reason.CANCELLED)
    return Moved(id=task_id, done=True, state=State.CANCELLED, kind=row["kind"], group_id=row["group_id"])


async def _rejected(session: Session, task_id: int) -> Moved:
    rows = await session.rows("live", [task_id]) or await session.rows("ended", [task_id])
    if not rows:
        return Moved(id=task_id, done=False, state=None)
    return Moved(id=task_id, done=False, state=State(rows[0]["state"]), kind=rows[0]["kind"])


async def retry(session: Session, ids: Sequence[int]) -> list[Moved]:
    """Bring ended tasks back."""
    await lock_bonds_of(session, ids)
    return _with_new_states([await _retry(session, task_id) for task_id in ids], await draw(session))


def _with_new_states(moved: Sequence[Moved], moves: Moves) -> list[Moved]:
    """A task that went into its line may have a place there at once."""
    return [replace(entry, state=moves[entry.id][1]) if entry.id in moves else entry for entry in moved]


async def _retry(session: Session, task_id: int) -> Moved:
    rows = await session.rows("ended", [task_id])
    if not rows:
        return await _rejected(session, task_id)
    (row,) = rows
    state = await session.value("revive", task_id)
    if state is None:
        holder = await session.value("key_holder", row["kind"], row["key"])
        return Moved(id=task_id, done=False, state=State(row["state"]), kind=row["kind"], key_holder=holder)
    await _forget_ended(session, row)
    session.touch(row["kind"], row["limit_key"])
    return Moved(id=task_id, done=True, state=State(state), kind=row["kind"])


async def _forget_ended(session: Session, row: Any) -> None:
    await session.run("forget_ended", row["id"])
    session.count(row["queue"], row["kind"], row["state"], -1)


async def delete(session: Session, ids: Sequence[int]) -> list[Moved]:
    """Remove what does not run."""
    await lock_bonds_of(session, ids)
    moved = [await _delete(session, task_id) for task_id in ids]
    await draw(session)
    return moved


async def _delete(session: Session, task_id: int) -> Moved:
    live = await session.rows("live", [task_id])
    if live:
        (row,) = live
        if row["state"] == State.RUNNING:
            return Moved(id=task_id, done=False, state=State.RUNNING, kind=row["kind"], node_id=row["node_id"])
        await session.run("forget", task_id)
        session.touch(row["kind"], row["limit_key"], row["group_id"])
        return Moved(id=task_id, done=True, state=None, kind=row["kind"], group_id=row["group_id"])
    ended = await session.rows("ended", [task_id])
    if not ended:
        return Moved(id=task_id, done=False, state=None)
    await _forget_ended(session, ended[0])
    return Moved(id=task_id, done=True, state=None, kind=ended[0]["kind"])


async def reschedule(session: Session, changes: Sequence[Rescheduling]) -> list[Moved]:
    """Change when tasks are due."""
    await lock_bonds_of(session, [change.id for change in changes])
    return _with_new_states([await _reschedule(session, change) for change in changes], await draw(session))


async def _reschedule(session: Session, change: Rescheduling) -> Moved:
    run_at = to_datetime(change.run_at) if change.run_at is not None else None
    row = await session.row("reschedule", change.id, run_at, change.delay)
    return await _moved(session, change.id, row)


async def set_priority(session: Session, changes: Sequence[Reprioritizing]) -> list[Moved]:
    """Change the order."""
    await lock_bonds_of(session, [change.id for change in changes])
    moved = [
        await _moved(session, change.id, await session.row("set_priority", change.id, change.priority))
        for change in changes
    ]
    return _with_new_states(moved, await draw(session))


async def _moved(session: Session, task_id: int, row: Any) -> Moved:
    if row is None:
        return await _rejected(session, task_id)
    session.touch(row["kind"], row["limit_key"])
    return Moved(id=task_id, done=True, state=State(row["state"]), kind=row["kind"])


async def pause(session: Session, queues: Sequence[str]) -> list[bool]:
    """Close queues; one that has had no task yet is closed in advance."""
    await lock_all_key_queues(session)  # nobody puts a line in order who does not know of it yet
    await session.run("add_queues", list(queues))
    return await _open_or_close(session, "pause", queues)


async def resume(session: Session, queues: Sequence[str]) -> list[bool]:
    """Open queues again."""
    await lock_all_key_queues(session)
    return await _open_or_close(session, "resume", queues)


async def _open_or_close(session: Session, way: str, queues: Sequence[str]) -> list[bool]:
    done = [await session.run(way, queue) == 1 for queue in queues]
    for queue, is_news in zip(queues, done, strict=True):
        if is_news:
            await touch_queue(session, queue)
    await draw(session)
    return done


async def _pruned(session: Session, state: State, age: int, limit: int) -> list[Any]:
    if state is State.SUCCEEDED:
        return await session.rows("prune_succeeded", age, limit)
    return await session.rows("prune", state, age, limit)


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
        gone = await _pruned(session, state, age, limit - pruned)
        await note_pruned(session, state, [(kind, number) for _, kind, number in gone])
        for queue, kind, _ in gone:
            session.count(queue, kind, state, -1)
            pruned += 1
    await session.run("prune_rates", limit)
    if cutoffs.audit is not None:
        await session.run("prune_audit", cutoffs.audit, limit)
    known = [age for age in ages.values() if age is not None]
    if len(known) == len(ages):  # as long as some tasks are kept for ever, so are the groups
        await session.run("prune_groups", max(known), limit)
    return pruned
