"""Follow-ups: what the moves of a transaction cause. Groups end, tasks that waited for them are released, and key
queues are balanced.

A rule that moves a task notes its key queue and its group in `session.touched`, and draws the follow-ups once, at its
end: a batch that touches a key queue many times balances it once.
"""

from __future__ import annotations

from collections.abc import Collection

from synergon.stores.rules import key_queues
from synergon.stores.session import Moves, Session


async def draw(session: Session) -> Moves:
    """End the groups that have no live task, release what waited for them, balance the key queues; the tasks that this
    has moved. `session.touched.released` has the kinds of those that waited for a group."""
    touched, moves = session.touched, Moves()
    touched.released = []
    if touched.groups:
        groups, touched.groups = touched.groups, set()
        moves.update(await _end_groups(session, groups))
    if touched.key_queues:
        names, touched.key_queues = touched.key_queues, set()
        moves.update(await key_queues.balance(session, names))
    return moves


async def _end_groups(session: Session, ids: Collection[int]) -> Moves:
    """Each group ends once: a task of it that an operator retries later does not open it again."""
    await session.locks.groups(ids)
    ended = await session.groups.end_empty(ids)
    released = await session.groups.release_followers(ended) if ended else []
    for task in released:
        session.touched.add(task.kind, task.limit_key)
        session.touched.released.append(task.kind)
    return {task.id: (task.kind, task.state) for task in released}
