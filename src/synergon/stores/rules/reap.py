"""Reaps dead nodes: releases or ends the tasks that they ran, and deletes the nodes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord
from synergon.model.tasks import Reaped
from synergon.policies import CRASH_LIMIT
from synergon.stores.rows import DeadNode, LiveTask
from synergon.stores.rules import follow_ups
from synergon.stores.rules.finish import charge_crash
from synergon.stores.session import Moves, Session


async def reap(session: Session, gone: Sequence[str], limit: int) -> list[Reaped]:
    """Take running tasks from nodes whose lease has ended, from nodes in `gone`, and from nodes that are not
    registered. The last entry also lists the kinds of other tasks that became ready."""
    await session.locks.for_dead_nodes(gone, limit)
    dead = {node.id: node for node in await session.nodes.lock_dead(gone)}
    orphans = await session.tasks.orphans(dead.keys(), limit)
    reaped = [await _take_back(session, task, dead.get(task.node_id or "")) for task in orphans]
    moves = await follow_ups.apply_follow_ups(session)
    await session.nodes.delete_idle(dead.keys())
    return _with_moves(reaped, moves)


def crashes_charged(task: LiveTask, node: DeadNode | None) -> int:
    """The number of crashes that a task is charged for the death of its node: one, because the task may have caused it;
    none if the node had announced that it stops. A started command is always charged, because it is never run again."""
    return 0 if node is not None and node.is_stopping and not task.is_command else 1


async def _take_back(session: Session, task: LiveTask, node: DeadNode | None) -> Reaped:
    assert task.node_id is not None, "a running task has one"
    charged = crashes_charged(task, node)
    if charged:
        message = f"node {task.node_id} died while it ran the task"
        await charge_crash(session, task, ErrorRecord(attempt=0, type="Crash", message=message, node_id=task.node_id))
    else:
        await session.tasks.charge(task.id, attempts=1)
    session.touched.add(task.kind, task.limit_key, task.group_id)
    crashes = task.crashes + charged
    state = await _move(session, task, crashes)
    return Reaped(id=task.id, kind=task.kind, node_id=task.node_id, state=state, crashes=crashes)


async def _move(session: Session, task: LiveTask, crashes: int) -> State:
    if task.cancel_requested:
        await session.tasks.end([task], State.CANCELLED, Reason.CANCELLED)
        return State.CANCELLED
    if task.is_command or crashes >= CRASH_LIMIT:
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
