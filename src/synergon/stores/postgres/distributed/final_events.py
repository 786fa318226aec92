"""Reads final events by their time, for databases that do not report which transactions are under way.

A transaction may commit after others that wrote later moments. So each read also looks back over a stretch of time that
is longer than any transaction of a store, and returns events that have appeared there since; it remembers which ones it
has returned. A reader that resumes from a cursor starts earlier by that stretch and returns its events again: then
delivery is at least once, not exactly once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Final

from synergon.model.events import Event
from synergon.model.lifecycle import State
from synergon.model.record import EPOCH, from_datetime, to_datetime
from synergon.stores.final_events import NOW, NUMBER, Floor, numbers_of, unreadable
from synergon.stores.postgres.final_events import event_of, pruned
from synergon.stores.postgres.session import Session
from synergon.stores.postgres.transactions import Transactions

MARGIN_SECONDS: Final = 60.0
"""How much longer the stretch is than the longest transaction, to allow for differences between clocks and for the time
between reads."""
SHORT_SECONDS: Final = 2.0
"""How far back every read looks: the largest expected difference between the clocks of several machines."""
FULL_READ_SECONDS: Final = 15.0
"""The interval at which the whole stretch is read."""

_CURSOR: Final = re.compile(f"{NUMBER}(?:~{NUMBER})?")
_LAST_MOMENT: Final = from_datetime(datetime.max.replace(tzinfo=EPOCH.tzinfo))


class ClockFinalEvents:
    """Returns each event once, unless a commit takes longer than a call may. Late events are out of order."""

    def __init__(
        self,
        transactions: Transactions,
        states: Collection[State],
        kinds: Collection[str] | None,
        stretch_seconds: float,
    ) -> None:
        self._transactions = transactions
        self._states = sorted(states)
        self._kinds = None if kinds is None else sorted(kinds)
        self._stretch = timedelta(seconds=stretch_seconds)
        self._position: tuple[datetime, int] = (EPOCH, 0)
        self._given: dict[tuple[int, datetime], None] = {}
        """The events that were returned, by id and moment. Events older than two stretches are removed."""
        self._floor = Floor(None)
        self._full_read_at = float("-inf")

    @classmethod
    async def open(
        cls,
        transactions: Transactions,
        after: str | None,
        states: Collection[State],
        kinds: Collection[str] | None,
        call_seconds: float,
    ) -> ClockFinalEvents:
        """Open a reader that starts at the cursor less the stretch, because more events may have appeared there."""
        reading = cls(transactions, states, kinds, call_seconds + MARGIN_SECONDS)
        if after == NOW:
            now = await transactions.statement(_now)
            reading._position = (now, 0)
            reading._floor = Floor(from_datetime(now))
            reading._given = dict.fromkeys(
                await transactions.statement(_since, reading._states, now - reading._stretch, now)
            )
        elif after is not None:
            found = _CURSOR.fullmatch(after)
            if found is None:
                raise unreadable(after)
            moment, floor = numbers_of(after, *found.groups(default="0"), greatest=_LAST_MOMENT)
            reading._position = (to_datetime(moment) - reading._stretch, 0)
            reading._floor = Floor(max(floor, from_datetime(reading._position[0])))
        return reading

    async def read(self, limit: int) -> list[Event]:
        """Read the next events. Raises EventsLost if an unread event was pruned."""
        gone, rows = await self._transactions.statement(_page, self._states, self._kinds, *self._position, limit)
        self._floor.check(gone, from_datetime(self._position[0]))
        late = await self._late(limit) if len(rows) < limit else []
        if rows:
            self._position = (rows[-1]["at"], rows[-1]["task_id"])
        self._remember(late)  # `rows` may contain some of them, if their moment is that of the position
        new = [row for row in rows if (row["task_id"], row["at"]) not in self._given]
        self._remember(new)
        return [event_of(row, self._cursor(row)) for row in late + new]

    async def _late(self, limit: int) -> list[Any]:
        """Events that have appeared in the part of the history that was read before, at most `limit`. The next read
        finds the others."""
        is_long = time.monotonic() - self._full_read_at > FULL_READ_SECONDS
        back = self._stretch if is_long else timedelta(seconds=SHORT_SECONDS)
        since, until = max(self._position[0], EPOCH + back) - back, self._position[0]
        missing = [
            key
            for key in await self._transactions.statement(_since, self._states, since, until)
            if key not in self._given
        ]
        if is_long and len(missing) <= limit:
            self._full_read_at = time.monotonic()
        if not missing:
            return []
        wanted = sorted(missing, key=lambda key: key[1])[:limit]
        return list(await self._transactions.statement(_of, self._states, [task_id for task_id, _ in wanted]))

    def _remember(self, rows: list[Any]) -> None:
        for row in rows:
            self._given[row["task_id"], row["at"]] = None
        oldest = self._position[0] - 2 * self._stretch
        while self._given:
            key = next(iter(self._given))
            if key[1] >= oldest:
                break
            del self._given[key]

    def _cursor(self, row: Any) -> str:
        moment = from_datetime(max(row["at"], self._position[0]))
        return f"{moment}{self._floor.suffix(moment)}"


async def _now(session: Session) -> datetime:
    now: datetime = await session.value("now")
    return now


async def _since(session: Session, states: list[State], since: datetime, until: datetime) -> list[Any]:
    return [(row["id"], row["finished_at"]) for row in await session.rows("ended_since", states, since, until)]


async def _page(
    session: Session, states: list[State], kinds: list[str] | None, moment: datetime, task_id: int, limit: int
) -> tuple[int, list[Any]]:
    rows = await session.rows("endings", states, moment, task_id, limit)
    return await pruned(session, states, kinds), rows


async def _of(session: Session, states: list[State], ids: list[int]) -> list[Any]:
    return await session.rows("endings_of", ids, states)
