"""Counts of tasks in the memory store: implements `stores.session.CountRows` with counts that the tables maintain."""

from __future__ import annotations

from collections import Counter
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.model.task_records import Counts
from synergon.stores import session as port
from synergon.stores.rows import CountName, KindCount, LiveCount, OldestReady, QueueRow

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class CountRows(port.CountRows):
    """Implements `stores.session.CountRows` for the memory store."""

    __slots__ = ("_session",)

    is_cheap = True

    def __init__(self, session: Session) -> None:
        self._session: Final = session

    async def live(self) -> Counts[CountName]:
        return self._counts(is_final=False)

    async def first(self, limit: int) -> Counts[CountName]:  # noqa: ARG002  all are as cheap as some
        return self._counts(is_final=False)

    async def final(self) -> Counts[CountName]:
        return self._counts(is_final=True)

    def _counts(self, *, is_final: bool) -> Counts[CountName]:
        return Counts(
            {
                (queue, kind, state): number
                for (queue, kind), tally in self._session.tables.tallies.items()
                for state, number in tally.items()
                if number and state.is_final is is_final
            }
        )

    async def stored(self) -> LiveCount | None:
        return self._session.tables.live_count

    async def store(self, row: LiveCount) -> None:
        self._session.tables.live_count = row

    async def queues(self) -> list[QueueRow]:
        queues = self._session.tables.queues
        return [
            QueueRow(name, None if paused_at is None else to_datetime(paused_at))
            for name, paused_at in sorted(queues.items())
        ]

    async def oldest_ready(self) -> list[OldestReady]:
        oldest: dict[tuple[str, str], int] = {}
        for kind, ready_group in self._session.tables.ready.by_kind():
            if (due_at := ready_group.oldest()) is not None:
                name = (ready_group.queue, kind)
                oldest[name] = min(due_at, oldest.get(name, due_at))
        return [OldestReady(queue, kind, due_at) for (queue, kind), due_at in oldest.items()]

    async def failures(self, age: int, limit: int) -> list[KindCount]:
        since = self._session.now - age
        failed = reversed(self._session.tables.ended[State.FAILED].values())
        recent = takewhile(lambda row: (row.finished_at or 0) >= since, failed)
        return [KindCount(*entry) for entry in Counter(row.task.kind for row in islice(recent, limit)).items()]

    async def overdue(self) -> int:
        return sum(row.overdue for rows in self._session.tables.running.values() for row in rows.values())
