"""Reaps dead nodes: releases or ends the tasks that they ran, and deletes the nodes.

The death of a node is no evidence against any of its tasks: none is charged a crash. Each of them becomes a suspect.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord
from synergon.model.tasks import Reaped
from synergon.policies import OWNER_DEATH_LIMIT
from synergon.stores.rows import LiveTask
from synergon.stores.rules import follow_ups, suspects
from synergon.stores.rules.finish import give_back_attempt
from synergon.stores.session import Moves, Session


async def reap(session: Session, gone: Sequence[str], limit: int) -> list[Reaped]:
    """Take running tasks from dead nodes: those whose lease has ended, those in `gone`, and those that have no row. The
    last entry also lists the kinds of other tasks that became ready."""
    await session.locks.for_dead_nodes(gone, limit)
    dead = await session.nodes.lock_dead(gone)
    reaped = [await _take_back(session, task) for task in await session.tasks.orphans(dead, limit)]
    moves = await follow_ups.apply_follow_ups(session)
    await session.nodes.delete_idle(dead)
    return _with_moves(reaped, moves)


async def _take_back(session: Session, task: LiveTask) -> Reaped:
    assert task.node_id is not None, "a running task has one"
    message = f"node {task.node_id} died while it ran the task"
    error = ErrorRecord(attempt=0, type="NodeDied", message=message, node_id=task.node_id)
    await give_back_attempt(session, task, error)
    owner_deaths = await suspects.note_owner_death(session, task)
    session.touched.add(task.kind, task.limit_key, task.group_id)
    state = await _move(session, task, owner_deaths)
    return Reaped(id=task.id, kind=task.kind, node_id=task.node_id, state=state, owner_deaths=owner_deaths)


async def _move(session: Session, task: LiveTask, owner_deaths: int) -> State:
    if task.cancel_requested:
        await session.tasks.end([task], State.CANCELLED, Reason.CANCELLED)
        return State.CANCELLED
    if task.is_command or owner_deaths >= OWNER_DEATH_LIMIT:
        await session.tasks.end([task], State.FAILED, Reason.CRASHED)
        return State.FAILED
    return await session.tasks.release(task)


def _with_moves(reaped: Sequence[Reaped], moves: Moves) -> list[Reaped]:
    told = [replace(entry, state=moves[entry.id][1]) if entry.id in moves else entry for entry in reaped]
    own = {entry.id for entry in reaped}
    released = tuple(kind for task_id, (kind, state) in moves.items() if state is State.READY and task_id not in own)
    if told and released:
        told[-1] = replace(told[-1], released=released)
    return told
