"""Limits: stores what the code declares and what operators set, and reports the usage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from synergon.model.lifecycle import State
from synergon.model.limits import LimitRecord, NewLimit, NewProvider, NewRate
from synergon.options.addresses import covers
from synergon.stores.rows import LimitRow
from synergon.stores.rules import servers
from synergon.stores.rules.follow_ups import apply_follow_ups
from synergon.stores.rules.key_queues import touch_kind
from synergon.stores.session import Session

KEY_QUEUES: Final = "key:"
"""Limits whose names begin so are those of the key queues of a kind."""


async def declare(session: Session, limits: Sequence[NewLimit], providers: Sequence[NewProvider]) -> None:
    """Store the limits that the code declares, where they differ from its last declaration. Only those are locked."""
    declared = {limit.name: msgspec.json.encode(limit).decode() for limit in limits}
    known = await session.limits.declared(declared)
    changed = [limit for limit in limits if known.get(limit.name) != declared[limit.name]]
    if any(limit.name.startswith(KEY_QUEUES) and limit.name not in known for limit in changed):
        await session.limits.exclude_unlimited()
    for limit in sorted(changed, key=lambda limit: limit.name):
        if await session.limits.declare(limit, declared[limit.name]):
            await _touch(session, limit.name)
    await servers.declare(session, providers)
    await apply_follow_ups(session)


async def set_limit(session: Session, name: str, value: int | None) -> bool:
    """Change the value of a limit. False if it is not declared."""
    if not await session.limits.set_value(name, value):
        return False
    await _touch(session, name)
    await apply_follow_ups(session)
    return True


async def _touch(session: Session, name: str) -> None:
    """Note the key queues of this limit for `follow_ups.apply_follow_ups`."""
    if name.startswith(KEY_QUEUES):
        await touch_kind(session, name.removeprefix(KEY_QUEUES))


async def limits(session: Session) -> list[LimitRecord]:
    """All limits, by name, with the number of permits in use."""
    rows = await session.limits.all()
    used = await _used(session, [row.name for row in rows])
    totals = {(KEY_QUEUES + total.kind, total.state): total.count for total in await session.limits.key_queue_totals()}
    return [
        LimitRecord(
            name=row.name,
            value=row.value,
            in_use=totals.get((row.name, State.RUNNING), used[row.name]),
            waiting=totals.get((row.name, State.WAITING), 0),
            rate=_rate(row),
        )
        for row in rows
    ]


def _rate(row: LimitRow) -> NewRate | None:
    return None if row.every is None or row.burst is None else NewRate(every=row.every, burst=row.burst)


async def _used(session: Session, names: Sequence[str]) -> Counter[str]:
    """How many running tasks hold each limit by name, or run on a server that it covers."""
    used: Counter[str] = Counter()
    for held in await session.limits.held():
        held_names = set(held.limits)
        if held.address is not None:
            held_names.update(name for name in names if covers(name, held.address))
        used.update(dict.fromkeys(held_names, held.count))
    return used
