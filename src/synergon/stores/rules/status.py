"""The status of a store: depth and age of its queues, failures, overdue tasks, and servers that back off."""

from __future__ import annotations

from typing import Final

from synergon.model.cluster_status import KindAge, QueueStatus, StoreStatus
from synergon.model.record import to_datetime
from synergon.stores.rules import counts, servers
from synergon.stores.session import Session

HOUR: Final = 3_600_000_000
MOST_FAILURES: Final = 10_000
"""How many failures of the last hour are counted."""


async def ready_kinds(session: Session) -> set[str]:
    """The kinds that have ready tasks."""
    return {oldest.kind for oldest in await session.counts.oldest_ready()}


async def status(session: Session) -> StoreStatus:
    """Read the status. The cost does not depend on the number of tasks, except that up to `counts.MOST_COUNTED` live
    ones are counted."""
    now = await session.read_clock()
    ages: dict[str, list[KindAge]] = {}
    for oldest in await session.counts.oldest_ready():
        age = KindAge(kind=oldest.kind, oldest_ready_seconds=max(now - oldest.due_at, 0) / 1_000_000)
        ages.setdefault(oldest.queue, []).append(age)
    failures = await session.counts.failures(HOUR, MOST_FAILURES)
    moment = to_datetime(now)
    return StoreStatus(
        now=moment,
        queues=tuple(
            QueueStatus(
                name=queue.name,
                is_paused=queue.is_paused,
                counts=queue.counts,
                counted_at=queue.counted_at,
                kinds=tuple(sorted(ages.get(queue.name, ()), key=lambda age: -age.oldest_ready_seconds)),
            )
            for queue in await counts.queues(session)
        ),
        failures_last_hour={row.kind: row.count for row in sorted(failures, key=lambda row: (-row.count, row.kind))},
        overdue=await session.counts.overdue(),
        suspended_servers=tuple(server for server in await servers.servers(session) if server.is_suspended(moment)),
    )
