"""Limits: what the code declares, what operators set, and what is in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from synergon.model.limits import LimitRecord, NewLimit, NewProvider, NewRate
from synergon.options.addresses import covers
from synergon.stores.sqlite import servers
from synergon.stores.sqlite.follow_ups import draw
from synergon.stores.sqlite.key_queues import touch_kind
from synergon.stores.sqlite.transaction import Transaction

OF_KEY_QUEUES: Final = "key:"
"""Limits whose names begin so belong to the lines of a kind."""


def declare(transaction: Transaction, limits: Sequence[NewLimit], providers: Sequence[NewProvider]) -> None:
    """What the code says. Only what it says otherwise than before changes anything."""
    for limit in limits:
        _declare(transaction, limit)
    for provider in providers:
        servers.declare(transaction, provider)
    draw(transaction)


def _declare(transaction: Transaction, limit: NewLimit) -> None:
    declared = msgspec.json.encode(limit).decode()
    known = transaction.row("limit", limit.name)
    if known is not None and known[0] == declared:
        return
    every, burst = (limit.rate.every, limit.rate.burst) if limit.rate is not None else (None, None)
    transaction.run("declare_limit", limit.name, declared, limit.value, every, burst)
    _touch(transaction, limit.name)


def set_limit(transaction: Transaction, name: str, value: int | None) -> bool:
    """For everybody, from now on; False: nobody has declared it."""
    if transaction.run("set_limit", value, name) == 0:
        return False
    _touch(transaction, name)
    draw(transaction)
    return True


def _touch(transaction: Transaction, name: str) -> None:
    if name.startswith(OF_KEY_QUEUES):
        touch_kind(transaction, name.removeprefix(OF_KEY_QUEUES))


def split(holds: str) -> tuple[str, ...]:
    """The names of the limits that a row holds."""
    return tuple(holds.split("\n")) if holds else ()


def limits(transaction: Transaction) -> list[LimitRecord]:
    """All limits, by name, with what is in use."""
    rows = transaction.rows("limits")
    used = _used(transaction, [row[0] for row in rows])
    key_queues = {(OF_KEY_QUEUES + kind, state): count for kind, state, count in transaction.rows("used_key_queues")}
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


def _used(transaction: Transaction, names: Sequence[str]) -> Counter[str]:
    """How many running tasks hold each limit by name or run on a server below it."""
    used: Counter[str] = Counter()
    for holds, server, count in transaction.rows("used_limits"):
        held = set(split(holds))
        if server is not None:
            held.update(name for name in names if covers(name, server))
        used.update(dict.fromkeys(held, count))
    return used
