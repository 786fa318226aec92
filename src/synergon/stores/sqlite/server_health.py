"""The health of servers: one that fails again and again rests, and is tried with one task at a time afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from synergon.stores.sqlite.transaction import Transaction


class Health(NamedTuple):
    """What the row of a server says."""

    failures: int
    backoffs: int
    backs_off_until: int | None


WELL = Health(0, 0, None)


def note(transaction: Transaction, outcomes: Iterable[tuple[str, str, bool]]) -> None:
    """Count how attempts went: provider, address, and whether that server was well. Servers that left are forgotten."""
    by_server: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for provider, address, is_well in outcomes:
        by_server[provider, address].append(is_well)
    for server, attempts in by_server.items():
        row = transaction.row("health", *server)
        if row is None:
            continue
        before = after = Health(*row[:3])
        for is_well in attempts:
            after = WELL if is_well else _failed(after, transaction.now, *row[3:])
        if after != before:
            transaction.run("set_health", *after, *server)


def _failed(health: Health, now: int, backoff_after: int | None, backoff_first: int, backoff_cap: int) -> Health:
    failures, backoffs, backs_off_until = health
    if backs_off_until is not None and backs_off_until > now:
        return health  # it was running when the rest began, which it must not lengthen
    failures += 1
    if backoff_after is None or failures < backoff_after:
        return Health(failures, backoffs, backs_off_until)
    return Health(failures, backoffs + 1, now + backoff_length(backoffs, backoff_first, backoff_cap))


def backoff_length(backoffs: int, first: int, cap: int) -> int:
    """Twice as long after each rest, up to the cap, for any number of them."""
    return int(min(first * 2 ** min(backoffs, 62), cap))
