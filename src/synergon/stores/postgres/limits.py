"""Limits: what the code declares, what operators set, and what is in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from synergon.model.limits import LimitRecord, NewLimit, NewProvider, NewRate
from synergon.options.addresses import covers
from synergon.stores.postgres import servers
from synergon.stores.postgres.follow_ups import draw
from synergon.stores.postgres.key_queues import touch_kind
from synergon.stores.postgres.lock_order import OF_KEY_QUEUES, terms_of
from synergon.stores.postgres.session import Session


async def declare(session: Session, limits: Sequence[NewLimit], providers: Sequence[NewProvider]) -> None:
    """What the code says. Only what it says otherwise than before changes anything, or is locked."""
    declared = {limit.name: msgspec.json.encode(limit).decode() for limit in limits}
    known = {row["name"]: row["declared"] for row in await session.rows("declared_limits", list(declared))}
    news = [limit for limit in limits if known.get(limit.name) != declared[limit.name]]
    if any(limit.name.startswith(OF_KEY_QUEUES) and limit.name not in known for limit in news):
        await session.rows("make_limit")
    for limit in sorted(news, key=lambda limit: limit.name):
        rate = (limit.rate.every, limit.rate.burst) if limit.rate is not None else (None, None)
        if await session.run("declare_limit", limit.name, declared[limit.name], limit.value, *rate) == 1:
            await _touch(session, limit.name)
    await servers.declare(session, providers)
    await draw(session)


async def set_limit(session: Session, name: str, value: int | None) -> bool:
    """For everybody, from now on; False: nobody has declared it."""
    if await session.run("set_limit", name, value) == 0:
        return False
    await _touch(session, name)
    await draw(session)
    return True


async def _touch(session: Session, name: str) -> None:
    """The row is locked because it was written. What it says is read again, and its lines are to be put in order."""
    if name.startswith(OF_KEY_QUEUES):
        session.terms.update(terms_of(await session.rows("lock_limits", [name])))
        await touch_kind(session, name.removeprefix(OF_KEY_QUEUES))


def split(holds: str) -> tuple[str, ...]:
    """The names of the limits that a row holds."""
    return tuple(holds.split("\n")) if holds else ()


async def limits(session: Session) -> list[LimitRecord]:
    """All limits, by name, with what is in use."""
    rows = await session.rows("limits")
    used = await _used(session, [row["name"] for row in rows])
    key_queues = {(OF_KEY_QUEUES + kind, state): count for kind, state, count in await session.rows("used_key_queues")}
    return [
        LimitRecord(
            name=name,
            value=value,
            in_use=key_queues.get((name, "running"), used[name]),
            waiting=key_queues.get((name, "waiting"), 0),
            rate=NewRate(every=every, burst=burst) if every is not None else None,
        )
        for name, value, every, burst in rows
    ]


async def _used(session: Session, names: Sequence[str]) -> Counter[str]:
    """How many running tasks hold each limit by name or run on a server below it."""
    used: Counter[str] = Counter()
    for holds, server, count in await session.rows("used_limits"):
        held = set(split(holds))
        if server is not None:
            held.update(name for name in names if covers(name, server))
        used.update(dict.fromkeys(held, count))
    return used
