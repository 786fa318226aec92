"""What follows from the moves of a transaction: groups end, what waited for them is released, lines close up.

Whoever moves a task writes down which line and group it touched (`Session.touch`) and draws the consequences once, at
the end of its work: a batch that touches a line many times puts it in order once.
"""

from __future__ import annotations

from collections.abc import Iterable

from synergon.model.lifecycle import State
from synergon.stores.postgres.key_queues import balance
from synergon.stores.postgres.lock_order import lock_groups
from synergon.stores.postgres.session import Moves, Session


async def draw(session: Session) -> Moves:
    """End the groups that have nothing left, put the lines in order; what was moved by that."""
    moves: Moves = {}
    if session.groups:
        touched, session.groups = session.groups, set()
        moves.update(await _end_groups(session, touched))
    if session.key_queues:
        key_queues, session.key_queues = session.key_queues, set()
        moves.update(await balance(session, key_queues))
    return moves


async def _end_groups(session: Session, group_ids: Iterable[int]) -> Moves:
    """Each ends once: a task that an operator brings back later does not begin it anew."""
    await lock_groups(session, group_ids)
    ended = [row["id"] for row in await session.rows("end_groups", sorted(group_ids))]
    return await _release_after(session, ended) if ended else {}


async def _release_after(session: Session, ended: list[int]) -> Moves:
    """Let go what waited for the groups: it is due when it says, and goes into its line if it has one."""
    released = await session.rows("release_after", ended)
    for row in released:
        session.touch(row["kind"], row["limit_key"])
        session.released.append(row["kind"])
    return {row["id"]: (row["kind"], State(row["state"])) for row in released}
