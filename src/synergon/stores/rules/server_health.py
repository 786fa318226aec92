"""The health of servers. A server that fails too often is taken out of service: it backs off, and then is tried again.

Two rules take a server out: `backoff_after` failures in a row, and `failure_most` failures among its last
`failure_window` outcomes, which the row remembers as bits (`recent`). After the back-off a server gets one task at a
time until a task succeeds, or, if its provider has a probe, no task until a probe succeeds. A failure of either begins
the next back-off, twice as long as the last one, up to the cap that the provider declares.

A server that is back in service starts with half of the failures that take it out. Its next back-off is short again
only when its window has no failure left: a server that fails half of its tasks stays out for longer each time.

Outcomes that arrive while no task may start on the server change nothing: their attempts began earlier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from synergon.model.limits import ClaimedProbes, ProbeResult, ServerChange, ServerProbe, failure_text
from synergon.model.outcomes import FencedOutcome
from synergon.model.record import to_datetime
from synergon.policies import BLAME_DELAY_SECONDS, LONGEST_BLAME_DELAY_SECONDS
from synergon.stores.rows import ServerHealth, ServerName, ServerRow
from synergon.stores.rules.rates import LAST_MOMENT
from synergon.stores.rules.shared_capacity import ServerCapacity
from synergon.stores.session import Session

LONGEST_DOUBLING: Final = 62
"""The maximum number of times that a back-off is doubled. After that it exceeds every cap, and more doublings would
only make the number larger."""

PROBE_MARGIN: Final = 5_000_000
"""How many microseconds a node has to report the result of a probe, after the timeout of the probe. Then another node
may probe the server."""

FAILURES_COUNT_FOR: Final = 60_000_000
"""For how many microseconds after its last failure the failures of a server count as load. The statement `lock_pools`
of PostgreSQL repeats this number."""

PROBE_SUCCEEDED: Final = "its probe succeeded"
TASK_SUCCEEDED: Final = "a task succeeded"


class _Condition(NamedTuple):
    failures: int = 0
    recent: int = 0
    backoffs: int = 0
    backs_off_until: int | None = None
    failed_at: int | None = None

    @property
    def is_out(self) -> bool:
        return self.backs_off_until is not None


async def note(session: Session, outcomes: Iterable[FencedOutcome]) -> list[ServerChange]:
    """Count these outcomes, in order, for the servers on which the attempts ran. Removed servers are ignored. Returns
    the servers that were taken out of service, and those that are back."""
    attempts: dict[ServerName, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.server is not None:
            attempts[outcome.server].append(outcome.is_server_well)
    if not attempts:
        return []
    failed = [server for server, successes in attempts.items() if not all(successes)]
    changes: list[ServerChange] = []
    for server, health in (await session.servers.lock_health(attempts, failed)).items():
        before = after = _condition(health)
        for is_success in attempts[server]:
            after = _succeeded(after, health) if is_success else _failed(after, health)
        if after != before:
            await session.servers.set_health(server, *after)
        if after.is_out != before.is_out:
            reason = failure_text(after.failures, after.recent.bit_count(), health.failure_window)
            changes.append(_change(server, after, reason if after.is_out else TASK_SUCCEEDED))
    return changes


def _condition(health: ServerHealth) -> _Condition:
    return _Condition(health.failures, health.recent, health.backoffs, health.backs_off_until, health.failed_at)


def _is_closed(condition: _Condition, health: ServerHealth) -> bool:
    """Whether no task may start on the server: it backs off, or waits for a probe."""
    until = condition.backs_off_until
    return until is not None and (until > health.now or health.probe_timeout is not None)


def _succeeded(condition: _Condition, health: ServerHealth) -> _Condition:
    if _is_closed(condition, health):
        return condition
    if condition.is_out:
        return _returned(condition, health)
    recent = _shifted(condition.recent, health, 0)
    return _Condition(0, recent, condition.backoffs if recent else 0, failed_at=condition.failed_at)


def _failed(condition: _Condition, health: ServerHealth) -> _Condition:
    if _is_closed(condition, health):
        return condition
    failures, recent = condition.failures + 1, _shifted(condition.recent, health, 1)
    counted = _Condition(failures, recent, condition.backoffs, failed_at=health.now)
    if health.backoff_after is None:
        return counted
    is_too_often = health.failure_most is not None and recent.bit_count() >= health.failure_most
    if condition.is_out or failures >= health.backoff_after or is_too_often:
        return _backed_off(counted, health)
    return counted


def _shifted(recent: int, health: ServerHealth, bit: int) -> int:
    """The bits of the last outcomes with one more. 1 is a failure."""
    return (recent << 1 | bit) & ((1 << health.failure_window) - 1)


def _returned(condition: _Condition, health: ServerHealth) -> _Condition:
    """The condition of a server that is back in service."""
    half = max((health.failure_most or 0) // 2, 1)
    return _Condition(0, (1 << half) - 1, condition.backoffs, failed_at=condition.failed_at)


def _backed_off(condition: _Condition, health: ServerHealth) -> _Condition:
    """The condition of a server that begins its next back-off, which is twice as long as the last one."""
    length = min(health.backoff_first * 2 ** min(condition.backoffs, LONGEST_DOUBLING), health.backoff_cap)
    until = min(health.now + length, LAST_MOMENT)
    return condition._replace(backoffs=condition.backoffs + 1, backs_off_until=until)


def _change(server: ServerName, condition: _Condition, reason: str) -> ServerChange:
    provider, address = server
    until = condition.backs_off_until
    return ServerChange(
        provider=provider,
        address=address,
        is_out=until is not None,
        reason=reason,
        until=None if until is None else to_datetime(until),
    )


async def blame_delay(session: Session, server: ServerName | None, failures: int) -> int:
    """The delay in microseconds before a task that has just blamed this server runs again. `failures` is how often the
    task has blamed servers. Returns 0 while the pool has another server in service that the task has not tried."""
    if server is None:
        return 0
    now = await session.read_clock()
    pool = [capacity_at(row, now) for row in await session.servers.all() if row.provider == server[0]]
    others = sum(other.is_in_service for other in pool if other.address != server[1])
    tries = failures - others
    if tries <= 0:
        return 0
    return round(min(BLAME_DELAY_SECONDS * 2.0 ** (tries - 1), LONGEST_BLAME_DELAY_SECONDS) * 1_000_000)


# ---------------------------------------------------------------- probes


async def claim_probes(session: Session, providers: Sequence[str]) -> ClaimedProbes:
    """Claim the probes that are due now: of servers of these providers that are out of service, and whose back-off is
    over. The back-off is extended by the timeout of the probe, so no other node claims it meanwhile; if this node dies,
    another one claims it then."""
    due: list[ServerProbe] = []
    moments: list[int] = []
    for health in await session.servers.lock_suspended(providers):
        condition = _condition(health)
        if health.probe_timeout is None or condition.backs_off_until is None:
            continue
        if condition.backs_off_until <= health.now:
            until = min(health.now + health.probe_timeout + PROBE_MARGIN, LAST_MOMENT)
            condition = condition._replace(backs_off_until=until)
            await session.servers.set_health((health.provider, health.address), *condition)
            due.append(
                ServerProbe(provider=health.provider, address=health.address, until=until, timeout=health.probe_timeout)
            )
        moments.append((condition.backs_off_until or 0) - health.now)
    return ClaimedProbes(probes=tuple(due), next_in=min(moments, default=None))


async def finish_probes(session: Session, results: Sequence[ProbeResult]) -> list[ServerChange | None]:
    """Apply the results of probes. A success returns the server to service, a failure begins the next back-off. Returns
    for each result the server if it is back in service. None if it stays out, or if its probe was claimed again."""
    names = [(result.provider, result.address) for result in results]
    healths = await session.servers.lock_health(names, names)
    changes: list[ServerChange | None] = []
    for name, result in zip(names, results, strict=True):
        health = healths.get(name)
        if health is None or health.backs_off_until != result.until:
            changes.append(None)
            continue
        condition = _condition(health)
        after = _returned(condition, health) if result.is_well else _backed_off(condition, health)
        await session.servers.set_health(name, *after)
        changes.append(_change(name, after, PROBE_SUCCEEDED) if result.is_well else None)
    return changes


# ---------------------------------------------------------------- capacity


def capacity_of(
    server: ServerName, capacity: int | None, *, recent_failures: int, is_out: bool, backs_off: bool, is_probed: bool
) -> ServerCapacity:
    """The server with the capacity that its health allows: none while it backs off or waits for a probe, otherwise one
    task at a time while it is out of service. For a server on trial, failures do not count as load: otherwise it would
    not be tried while others have free permits."""
    is_closed = is_out and (backs_off or is_probed)
    is_on_trial = is_out and not is_closed
    return ServerCapacity(
        *server,
        capacity,
        is_backed_off=is_closed,
        is_on_trial=is_on_trial,
        recent_failures=0 if is_on_trial else recent_failures,
    )


def capacity_at(server: ServerRow, now: int) -> ServerCapacity:
    """`capacity_of` for a row, at this moment."""
    until = server.backs_off_until
    is_fresh = server.failed_at is not None and now - server.failed_at < FAILURES_COUNT_FOR
    return capacity_of(
        (server.provider, server.address),
        server.capacity,
        recent_failures=server.recent.bit_count() if is_fresh else 0,
        is_out=until is not None,
        backs_off=until is not None and until > now,
        is_probed=server.is_probed,
    )
