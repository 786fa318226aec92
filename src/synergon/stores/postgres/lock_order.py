"""Lock order. All transactions lock rows in this order, so they cannot deadlock.

Limits by name, then servers, then groups by id, then nodes, then tasks by id. The key queues of a kind share one lock,
the row of the limit `key:<kind>`: a transaction that makes their tasks ready, or takes them out of ready or running,
holds it. Claims do not (they turn ready into running, and the sum stays), nor do callers' own transactions.

What to lock follows from a read of the tasks without locks. If that has changed when the tasks are locked, the lock is
taken late, out of order: if two transactions do so at once, the database rolls one of them back, and it is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from synergon.model.limits import NewRate
from synergon.stores.postgres.session import Session, Terms

OF_KEY_QUEUES: Final = "key:"
"""Limits whose names begin so belong to the lines of a kind."""

Bond = tuple[str, str | None, int | None, int | None]
"""What a task is bound to: its kind and limit key, its group, and the group that it waits for."""


async def lock(session: Session, bonds: Iterable[Bond]) -> None:
    """Lock what tasks are bound to."""
    kinds, groups = await kinds_and_groups(session, bonds)
    await lock_key_queues(session, kinds)
    await lock_groups(session, groups)


async def kinds_and_groups(session: Session, bonds: Iterable[Bond]) -> tuple[set[str], set[int]]:
    """The kinds whose lines are to be locked, and the groups: what follows a group may stand in a line, too."""
    kinds: set[str] = set()
    groups: set[int] = set()
    for kind, limit_key, group_id, after_group in bonds:
        if limit_key is not None:
            kinds.add(kind)
        groups.update(one for one in (group_id, after_group) if one is not None)
    if groups and not session.is_callers:
        kinds.update(row["kind"] for row in await session.rows("followers", sorted(groups)))
    return kinds, groups


async def lock_key_queues(session: Session, kinds: Iterable[str]) -> None:
    """Lock the lines of these kinds, and learn what their limits say."""
    missing = set(kinds) - session.terms.keys()
    if not missing:
        return
    found = await _terms(session, missing)
    if len(found) < len(missing):
        # Whoever makes such a limit meanwhile puts the lines in order, and must see what is done here.
        await session.rows("find_no_limit")
        found |= await _terms(session, missing - found.keys())
    for kind in missing:
        session.terms[kind] = found.get(kind, Terms())


def _names(kinds: Iterable[str]) -> list[str]:
    return sorted(OF_KEY_QUEUES + kind for kind in kinds)


async def _terms(session: Session, kinds: Iterable[str]) -> dict[str, Terms]:
    return terms_of(await session.rows("lock_limits", _names(kinds)))


async def lock_all_key_queues(session: Session) -> None:
    """Lock all lines that have a limit."""
    session.terms.update(terms_of(await session.rows("lock_key_queues")))


def terms_of(limits: Iterable[Any]) -> dict[str, Terms]:
    """What the limits of lines say, by kind."""
    return {
        name.removeprefix(OF_KEY_QUEUES): Terms(value, NewRate(every=every, burst=burst) if every is not None else None)
        for name, value, every, burst in limits
        if name.startswith(OF_KEY_QUEUES)
    }


async def lock_groups(session: Session, groups: Iterable[int]) -> None:
    """Lock these groups, so that nobody joins or ends them."""
    missing = set(groups) - session.locked_groups
    if missing:
        await session.rows("join_groups" if session.is_callers else "lock_groups", sorted(missing))
        session.locked_groups |= missing


async def lock_bonds_of(session: Session, ids: Sequence[int]) -> None:
    """Lock what these tasks, live or final, are bound to."""
    await lock(session, await session.rows("bonds", list(ids)))
