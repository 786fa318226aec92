"""Counts tasks.

Transactions that end tasks update the numbers of final tasks. Live tasks are counted by reading them, because otherwise
every statement that moves a task would have to update a counter. Up to `MOST_COUNTED` live tasks are counted for each
answer. If there are more, the answer has the numbers and the moment of the last count. Nodes count at intervals.
"""

from __future__ import annotations

from typing import Final

from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.model.task_records import Counts, QueueRecord
from synergon.stores.rows import CountName, LiveCount
from synergon.stores.session import Session

MOST_COUNTED: Final = 5000
"""If there are at most this many live tasks, they are counted for each answer."""

OLDEST: Final = 150_000_000
"""Stored numbers that are older than this, in microseconds, are not used: no node counts any more."""


async def counts(session: Session, *, is_exact: bool = False) -> Counts[CountName]:
    """Count tasks. If there are many live tasks, their numbers may be those of the last `recount`."""
    found = await session.counts.final()
    if not (is_exact or session.counts.is_cheap):
        first = await session.counts.first(MOST_COUNTED)
        if sum(first.values()) <= MOST_COUNTED:
            found.update(first)
            return found
        stored = await _stored(session, OLDEST)
        if stored is not None:
            found.update({(queue, kind, state): number for queue, kind, state, number in stored.numbers})
            found.counted_at = to_datetime(stored.counted_at)
            return found
    found.update(await session.counts.live())
    return found


async def queues(session: Session) -> list[QueueRecord]:
    """All queues, by name, with their counts."""
    found = await counts(session)
    by_queue: dict[str, dict[State, int]] = {}
    for (queue, _, state), number in found.items():
        numbers = by_queue.setdefault(queue, {})
        numbers[state] = numbers.get(state, 0) + number
    return [
        QueueRecord(
            name=row.name,
            paused_at=row.paused_at,
            counts=by_queue.get(row.name, {}),
            counted_at=found.counted_at,
        )
        for row in await session.counts.queues()
    ]


async def count_again(session: Session, age: int, least: int) -> LiveCount | None:
    """Count all live tasks. None if there are no more than `least`, or they were counted less than `age` ago."""
    if await _stored(session, age) is not None or sum((await session.counts.first(least)).values()) <= least:
        return None
    numbers = await session.counts.live()
    return LiveCount(await session.read_clock(), tuple((*name, number) for name, number in numbers.items()))


async def store(session: Session, row: LiveCount) -> None:
    """Store what `count_again` has counted."""
    await session.counts.store(row)


async def _stored(session: Session, age: int) -> LiveCount | None:
    """The stored numbers, if they are younger than `age`."""
    stored = await session.counts.stored()
    if stored is None or not 0 <= await session.read_clock() - stored.counted_at < age:
        return None
    return stored
