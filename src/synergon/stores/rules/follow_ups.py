"""Follow-ups of a transaction: ends groups, releases the tasks that waited for them, and balances key queues.

A rule that moves a task notes its key queue and group in `session.touched`, and calls `apply_follow_ups` once, at its
end. So a batch that moves many tasks of a key queue balances it once.
"""

from __future__ import annotations

from collections.abc import Collection

from synergon.stores.rules import key_queues
from synergon.stores.session import Moves, Session


async def apply_follow_ups(session: Session) -> Moves:
    """End the groups without live tasks, release the tasks that waited for them, and balance the key queues. Returns
    the moved tasks. `session.touched.released` then contains the kinds of the released tasks."""
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
    """End each group once: an operator who retries one of its tasks does not reopen it."""
    await session.locks.groups(ids)
    ended = await session.groups.end_empty(ids)
    released = await session.groups.release_followers(ended) if ended else []
    for task in released:
        session.touched.add(task.kind, task.limit_key)
        session.touched.released.append(task.kind)
    return {task.id: (task.kind, task.state) for task in released}
