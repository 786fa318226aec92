"""The health of servers. A server that fails several tasks in a row backs off. After the back-off it gets one task at a
time, until a task succeeds.

Each back-off is twice as long as the last one, up to the cap that the provider declares. A success resets this.
Failures of tasks that were running when a back-off began do not lengthen it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from synergon.model.outcomes import FencedOutcome
from synergon.stores.rows import ServerHealth, ServerName, ServerRow
from synergon.stores.rules.rates import LAST_MOMENT
from synergon.stores.rules.shared_capacity import ServerCapacity
from synergon.stores.session import Session

LONGEST_DOUBLING: Final = 62
"""How often a back-off is doubled at most. After that it exceeds every cap, and more doublings would only make the
number larger."""


class _Condition(NamedTuple):
    failures: int = 0
    backoffs: int = 0
    backs_off_until: int | None = None


async def note(session: Session, outcomes: Iterable[FencedOutcome]) -> None:
    """Count these outcomes, in order, for the servers on which the attempts ran. Removed servers are ignored."""
    attempts: dict[ServerName, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.server is not None:
            attempts[outcome.server].append(outcome.is_server_well)
    if not attempts:
        return
    failed = [server for server, successes in attempts.items() if not all(successes)]
    for server, health in (await session.servers.lock_health(attempts, failed)).items():
        before = after = _Condition(health.failures, health.backoffs, health.backs_off_until)
        for is_success in attempts[server]:
            after = _Condition() if is_success else _failed(after, health)
        if after != before:
            await session.servers.set_health(server, *after)


def _failed(condition: _Condition, health: ServerHealth) -> _Condition:
    failures, backoffs, backs_off_until = condition
    if backs_off_until is not None and backs_off_until > health.now:
        return condition
    failures += 1
    if health.backoff_after is None or failures < health.backoff_after:
        return _Condition(failures, backoffs, backs_off_until)
    length = min(health.backoff_first * 2 ** min(backoffs, LONGEST_DOUBLING), health.backoff_cap)
    return _Condition(failures, backoffs + 1, min(health.now + length, LAST_MOMENT))


def capacity_of(
    server: ServerName, capacity: int | None, *, failures: int, backoff_after: int | None, backs_off: bool
) -> ServerCapacity:
    """The server with the capacity that its health allows: none while it backs off, then one task at a time until a
    success."""
    is_suspect = backoff_after is not None and failures >= backoff_after
    return ServerCapacity(*server, capacity, is_backed_off=backs_off, is_on_trial=is_suspect and not backs_off)


def capacity_at(server: ServerRow, now: int) -> ServerCapacity:
    """`capacity_of` for a server whose provider was not read. Every success clears `backs_off_until`, so a moment in
    the past means that no task has succeeded since the back-off."""
    is_backing_off = server.backs_off_until is not None and server.backs_off_until > now
    is_on_trial = server.backs_off_until is not None and not is_backing_off
    return ServerCapacity(server.provider, server.address, server.capacity, is_backing_off, is_on_trial)
