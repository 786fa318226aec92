"""Limits: stores the values that the code declares and that operators set, and reads the usage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType

from synergon.model.lifecycle import State
from synergon.model.limits import KEY_QUEUES, LimitRecord, NewLimit, NewProvider, NewRate
from synergon.model.record import to_datetime
from synergon.options.addresses import covers
from synergon.stores.rows import LimitRow
from synergon.stores.rules import rates, servers
from synergon.stores.rules.follow_ups import apply_follow_ups
from synergon.stores.rules.key_queues import touch_kind
from synergon.stores.session import Session


async def is_declared(session: Session, limits: Sequence[NewLimit], providers: Sequence[NewProvider]) -> bool:
    """Whether all these limits and providers equal the last declaration, so that `declare` would change nothing."""
    declared = _as_json(limits)
    known = await session.limits.declared(declared)
    return known == declared and await servers.is_declared(session, providers)


def _as_json(limits: Sequence[NewLimit]) -> dict[str, str]:
    return {limit.name: msgspec.json.encode(limit).decode() for limit in limits}


async def declare(session: Session, limits: Sequence[NewLimit], providers: Sequence[NewProvider]) -> None:
    """Store the limits and providers that the code declares, unless they equal the last declaration. Only limits that
    differ are locked. New limits of key queues come last, because transactions take the lock of `exclude_unlimited`
    after the locks of limits."""
    declared = _as_json(limits)
    known = await session.limits.declared(declared)
    changed = [limit for limit in limits if known.get(limit.name) != declared[limit.name]]
    first = {limit.name for limit in changed if limit.name.startswith(KEY_QUEUES) and limit.name not in known}
    await _store(session, [limit for limit in changed if limit.name not in first], declared)
    if first:
        await session.limits.exclude_unlimited()
        await _store(session, [limit for limit in changed if limit.name in first], declared)
    await servers.declare(session, providers)
    await apply_follow_ups(session)


async def _store(session: Session, limits: Sequence[NewLimit], declared: Mapping[str, str]) -> None:
    """Store these limits, by name, and note the key queues that they apply to in `session.touched`."""
    for limit in sorted(limits, key=lambda limit: limit.name):
        if await session.limits.declare(limit, declared[limit.name]):
            await _touch(session, limit.name)


async def set_limit(
    session: Session, name: str, value: int | UnsetType | None, rate: NewRate | UnsetType | None = UNSET
) -> bool:
    """Change the value or the rate of a limit, and balance the key queues that it applies to. False if the limit is not
    declared, or only describes the batches of a kind."""
    if value is not UNSET and not await session.limits.set_value(name, value):
        return False
    if rate is not UNSET:
        # A task that waits for the old rate waits at most for one start of the new one.
        now = await session.read_clock()
        latest = now if rate is None else rates.after(rate, None, now, rate.burst)
        if not await session.limits.set_rate(name, rate, latest):
            return False
    await _touch(session, name)
    await apply_follow_ups(session)
    return True


async def _touch(session: Session, name: str) -> None:
    """Note the key queues that this limit applies to in `session.touched`."""
    if name.startswith(KEY_QUEUES):
        await touch_kind(session, name.removeprefix(KEY_QUEUES))


async def limits(session: Session) -> list[LimitRecord]:
    """All limits, by name, with the numbers of permits in use and of waiting tasks."""
    rows = await session.limits.all()
    now = await session.read_clock()
    used = await _used(session, [row.name for row in rows])
    totals = {(KEY_QUEUES + total.kind, total.state): total.count for total in await session.limits.key_queue_totals()}
    return [
        LimitRecord(
            name=row.name,
            value=row.value,
            in_use=totals.get((row.name, State.RUNNING), used[row.name]),
            waiting=totals.get((row.name, State.WAITING), 0),
            rate=row.rate,
            batch=row.batch,
            free_at=_free_at(row, now),
        )
        for row in rows
    ]


def _free_at(row: LimitRow, now: int) -> datetime | None:
    """When the rate of the limit permits the next start. None if it does now."""
    if row.rate is None:
        return None
    moment = rates.next_start(row.rate, row.next_at, now)
    return to_datetime(moment) if moment > now else None


async def _used(session: Session, names: Sequence[str]) -> Counter[str]:
    """For each limit, how many running tasks hold a permit of it or run on a server that it covers."""
    used: Counter[str] = Counter()
    for held in await session.limits.held():
        held_names = set(held.limits)
        if held.address is not None:
            held_names.update(name for name in names if covers(name, held.address))
        used.update(dict.fromkeys(held_names, held.count))
    return used
