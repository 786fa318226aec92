"""Reaps dead nodes: releases or ends the tasks that they ran, and deletes the nodes.

The death of a node is no evidence against any of its tasks: none is charged a crash. Each of them becomes a suspect.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from synergon.model.attempts import AttemptOutcome
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord
from synergon.model.tasks import Reaped
from synergon.policies import OWNER_DEATH_LIMIT
from synergon.stores.rows import LiveTask
from synergon.stores.rules import attempts, batches, ends, follow_ups, suspects
from synergon.stores.rules.finish import give_back_attempt
from synergon.stores.session import Moves, Session


async def reap(session: Session, gone: Sequence[str], limit: int) -> list[Reaped]:
    """Take running tasks from dead nodes: nodes whose lease has ended, nodes in `gone`, and nodes that have no row. The
    last entry also lists the kinds of other tasks that became ready."""
    await session.locks.for_dead_nodes(gone, limit)
    dead = await session.nodes.lock_dead(gone)
    orphans = await session.tasks.orphans(dead, limit)
    names = await attempts.node_names(session, orphans)
    reaped = [await _take_back(session, task, names) for task in orphans]
    moves = await follow_ups.apply_follow_ups(session)
    await session.nodes.delete_idle(dead)
    return _with_moves(reaped, moves)


async def _take_back(session: Session, task: LiveTask, names: attempts.NodeNames) -> Reaped:
    assert task.node_id is not None, "a running task has one"
    message = f"node {task.node_id} died while it ran the task"
    error = ErrorRecord(attempt=0, type="NodeDied", message=message, node_id=task.node_id)
    ended_attempts = await attempts.with_ended(session, task, AttemptOutcome.NODE_DIED, names)
    await give_back_attempt(session, task, error, ended_attempts)
    owner_deaths = await suspects.note_owner_death(session, task)
    session.touched.add(task.kind, task.limit_key)
    state = await _move(session, task, owner_deaths)
    return Reaped(id=task.id, kind=task.kind, node_id=task.node_id, state=state, owner_deaths=owner_deaths)


async def _move(session: Session, task: LiveTask, owner_deaths: int) -> State:
    if task.cancel_requested:
        await ends.end(session, [task], State.CANCELLED, Reason.CANCELLED)
        return State.CANCELLED
    if task.is_command or owner_deaths >= OWNER_DEATH_LIMIT:
        await ends.end(session, [task], State.FAILED, Reason.CRASHED)
        return State.FAILED
    return await session.tasks.release(task, leaves_key_queue=batches.must_run_alone(task))


def _with_moves(reaped: Sequence[Reaped], moves: Moves) -> list[Reaped]:
    told = [replace(entry, state=moves[entry.id][1]) if entry.id in moves else entry for entry in reaped]
    others = follow_ups.summary(moves, own={entry.id for entry in reaped})
    if told:
        told[-1] = replace(told[-1], released=others.ready, ended=others.ended)
    return told
