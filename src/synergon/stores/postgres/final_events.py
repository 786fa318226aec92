"""Reads final events by snapshots of PostgreSQL. A long transaction does not delay the reader, and its events are not
missed.

Transactions commit in another order than they begin. So no number in a row shows whether all earlier rows are visible
yet. A snapshot shows it: it lists the transactions that were under way when it was taken. Rows that are visible in a
snapshot but not in the one before were committed in between. So a reader goes from snapshot to snapshot.

For each state and kind, only the greatest transaction number of pruned events is stored. If a transaction with a
smaller number was under way and has ended since, its events may have been pruned before they were read. The reader then
raises `EventsLost`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from synergon.errors import OptionError
from synergon.model.events import Event
from synergon.model.lifecycle import State
from synergon.stores.final_events import BEGINNING, GREATEST, NOW, NUMBER, Floor, Position, numbers_of, unreadable
from synergon.stores.postgres.session import Session
from synergon.stores.postgres.transactions import Transactions
from synergon.stores.typed_rows import field_names, read_row

_SNAPSHOT: Final = "([0-9]{1,19}:(?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)"
_CURSOR: Final = re.compile(f"{_SNAPSHOT}/{_SNAPSHOT}/{NUMBER}-{NUMBER}(?:~{NUMBER})?")


class Snapshot(NamedTuple):
    """The transactions that had ended when the snapshot was taken: those with a number below `end` that are not in
    `open`."""

    end: int
    open: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Parse `end:open,open,...`. PostgreSQL writes another number before it, which is skipped."""
        *_, end, under_way = text.split(":")
        return cls(int(end), tuple(int(number) for number in under_way.split(",") if number))

    def __str__(self) -> str:
        return f"{self.end}:{','.join(map(str, self.open))}"


NOTHING: Final = Snapshot(0, ())


class SnapshotFinalEvents:
    """Returns each event once. Events that were committed between two snapshots come in the order of their transaction
    numbers."""

    def __init__(self, transactions: Transactions, states: Collection[State], kinds: Collection[str] | None) -> None:
        self._transactions = transactions
        self._states = sorted(states)
        self._kinds = None if kinds is None else sorted(kinds)
        self._seen = NOTHING
        """The last snapshot whose events were all returned."""
        self._until: Snapshot | None = None
        """The snapshot that is being read. `_position` says how far. None between two snapshots."""
        self._position: Position = BEGINNING
        self._floor = Floor(None)

    @classmethod
    async def open(
        cls,
        transactions: Transactions,
        after: str | None,
        states: Collection[State],
        kinds: Collection[str] | None,
        _seconds: float,
    ) -> SnapshotFinalEvents:
        """Open a reader that starts after the cursor `after`: at the beginning if it is None, at the present if it is
        `NOW`."""
        reading = cls(transactions, states, kinds)
        if after == NOW:
            reading._floor = Floor(await transactions.statement(pruned, reading._states, reading._kinds))
            reading._seen = await transactions.statement(_snapshot)
        elif after is not None:
            reading._begin(after)
        return reading

    def _begin(self, cursor: str) -> None:
        found = _CURSOR.fullmatch(cursor)
        if found is None:
            raise unreadable(cursor)
        seen, until, *texts = found.groups(default="0")
        number, task_id, floor = numbers_of(cursor, *texts)
        self._seen, self._until = Snapshot.parse(seen), Snapshot.parse(until)
        if max(*self._seen.open, self._seen.end, *self._until.open, self._until.end) > GREATEST:
            raise unreadable(cursor)
        self._position = (number, task_id)
        self._floor = Floor(floor)

    async def read(self, limit: int) -> list[Event]:
        """Read the next events. Raises EventsLost if an unread event was pruned."""
        while True:
            rows: list[Any] = []
            if self._until is not None:
                rows = await self._rest_of(self._until, limit)
            if not rows:
                rows = await self._rest_of(await self._take_snapshot(), limit)
            events = [self._event(row) for row in rows if row["state"] in self._states]
            if len(rows) < limit:
                self._finish()
            if events or not rows:
                return events

    async def _take_snapshot(self) -> Snapshot:
        """Finish the current snapshot and take a new one. Raises OptionError if the database has restarted its count of
        transactions."""
        self._finish()
        snapshot = await self._transactions.statement(_snapshot)
        if snapshot.end < self._seen.end:
            raise OptionError(
                "this cursor is from before the database was moved or restored: its transactions are counted anew "
                "since then; begin again without a cursor"
            )
        self._until = snapshot
        return snapshot

    def _finish(self) -> None:
        """Note that all events of the current snapshot, if there is one, were returned."""
        if self._until is not None:
            self._seen, self._until, self._position = self._until, None, BEGINNING

    async def _rest_of(self, until: Snapshot, limit: int) -> list[Any]:
        number, task_id = max((self._seen.end, -1), self._position)
        gone, rows = await self._transactions.statement(
            _page,
            self._states,
            self._kinds,
            [str(number) for number in self._seen.open],
            str(number),
            task_id,
            str(until.end),
            [str(number) for number in until.open],
            str(max(self._position[0], 0)),
            self._position[1],
            limit,
        )
        self._floor.check(gone, self._read_up_to(until))
        if rows:
            self._position = (rows[-1]["number"], rows[-1]["task_id"])
        return list(rows)

    def _read_up_to(self, until: Snapshot) -> int:
        """The transaction number up to which all events were returned, except those of transactions that are still
        under way."""
        late = [number for number in self._seen.open if number not in until.open and number >= self._position[0]]
        return min([max(self._seen.end - 1, self._position[0]), *(number - 1 for number in late)])

    def _event(self, row: Any) -> Event:
        number, until = row["number"], self._until or self._seen
        # A reader that resumes also gets events of transactions that are under way in the later snapshot.
        late = (under_way - 1 for under_way in (*self._seen.open, *until.open))
        floor = self._floor.suffix(min([max(self._seen.end, number), *late]))
        return event_of(row, f"{self._seen}/{self._until}/{number}-{row['task_id']}{floor}")


_EVENT_COLUMNS: Final = field_names(Event)


def event_of(row: Any, cursor: str) -> Event:
    """Read an event from a row of the history, and add its cursor."""
    return replace(read_row(Event, _EVENT_COLUMNS, row[: len(_EVENT_COLUMNS)]), cursor=cursor)


async def _snapshot(session: Session) -> Snapshot:
    return Snapshot.parse(await session.value("snapshot"))


async def _page(
    session: Session,
    states: list[State],
    kinds: list[str] | None,
    late: list[str],
    number: str,
    task_id: int,
    end: str,
    under_way: list[str],
    position: str,
    position_id: int,
    limit: int,
) -> tuple[int, list[Any]]:
    # The pruned number is read last, so that a prune between the two statements is noticed.
    rows = await session.rows("endings", late, number, task_id, end, under_way, position, position_id, limit)
    return await pruned(session, states, kinds), rows


async def pruned(session: Session, states: list[State], kinds: list[str] | None) -> int:
    """The largest transaction number among pruned events with these states and kinds; 0 if none was pruned.
    `kinds=None` means all kinds."""
    number: int = await session.value("pruned", states, kinds)
    return number
