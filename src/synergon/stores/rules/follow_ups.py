"""Follow-ups of a transaction: releases or cancels the tasks that depend on ended ones, ends groups, balances key
queues, and gives tenants their turns.

A rule that moves a task notes it in `session.touched`, and calls `apply_follow_ups` once, at its end. So a key queue is
balanced once, even if many of its tasks were moved."""

from __future__ import annotations

from collections.abc import Container

from synergon.model.lifecycle import State
from synergon.model.tasks import FollowUps
from synergon.stores.rules import dependencies, fair_shares, key_queues
from synergon.stores.session import Moves, Session


async def apply_follow_ups(session: Session) -> Moves:
    """Handle what `session.touched` notes. Returns the moved tasks."""
    touched, moves = session.touched, Moves()
    touched.followed = {}
    if touched.ended or touched.dependents or touched.doomed:
        touched.followed = await dependencies.follow(session)
        moves.update(touched.followed)
    if touched.groups:
        groups, touched.groups = touched.groups, set()
        await session.locks.groups(groups)
        # A group ends only once: an operator who retries one of its tasks does not reopen it.
        await session.groups.end_empty(groups)
    if touched.key_queues:
        names, touched.key_queues = touched.key_queues, set()
        moves.update(await key_queues.balance(session, names))
    if touched.of_tenants:
        ids, touched.of_tenants = touched.of_tenants, set()
        await fair_shares.tag(session, ids)
    return moves


def summary(moves: Moves, own: Container[int] = ()) -> FollowUps:
    """What follow-ups have changed, except the tasks of `own`."""
    others = [(task_id, kind, state) for task_id, (kind, state) in moves.items() if task_id not in own]
    return FollowUps(
        ready=tuple(kind for _, kind, state in others if state is State.READY),
        ended=tuple(task_id for task_id, _, state in others if state is State.CANCELLED),
    )
