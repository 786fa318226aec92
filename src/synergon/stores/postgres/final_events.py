"""The history in the order of transactions.

Transactions commit in another order than they begin in, so no number that a row is given when it is written says
whether all before it can be seen already. A snapshot does: it names the transactions that were under way when it was
taken. What is visible in one and was not in the one before is what has been committed in between, all of it, however
long a transaction took. So a reading goes from snapshot to snapshot, and nobody's long transaction holds it up.

What was pruned is known by its greatest number only. So a transaction that was under way, has ended since, and has a
number below that may have ended tasks which are gone: then something may be lost, and is said to be.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from synergon.errors import OptionError
from synergon.model.events import Event
from synergon.model.lifecycle import State
from synergon.stores.final_events import BEGINNING, GREATEST, NOW, NUMBER, Floor, Position, numbers_of, unreadable
from synergon.stores.postgres.session import Session
from synergon.stores.typed_rows import field_names, row_reader

Run = Callable[..., Awaitable[Any]]

_SNAPSHOT: Final = "([0-9]{1,19}:(?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)"
_CURSOR: Final = re.compile(f"{_SNAPSHOT}/{_SNAPSHOT}/{NUMBER}-{NUMBER}(?:~{NUMBER})?")


class Snapshot(NamedTuple):
    """Which transactions had been committed, or undone, at a moment: those below `end` that are not `open`."""

    end: int
    open: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """From `end:open,open,...`, with or without the lowest number before it that PostgreSQL writes."""
        *_, end, under_way = text.split(":")
        return cls(int(end), tuple(int(number) for number in under_way.split(",") if number))

    def __str__(self) -> str:
        return f"{self.end}:{','.join(map(str, self.open))}"


NOTHING: Final = Snapshot(0, ())


class SnapshotFinalEvents:
    """Gives each end once. Ends that were committed between two looks come in the order in which their transactions
    began to write."""

    def __init__(self, run: Run, states: Collection[State], kinds: Collection[str] | None) -> None:
        self._run = run
        self._states = sorted(states)
        self._kinds = None if kinds is None else sorted(kinds)
        self._seen = NOTHING
        """All of this was given."""
        self._until: Snapshot | None = None
        """And of this all up to `_position`; None: nothing is begun."""
        self._position: Position = BEGINNING
        self._floor = Floor(None)

    @classmethod
    async def open(
        cls, run: Run, after: str | None, states: Collection[State], kinds: Collection[str] | None, _seconds: float
    ) -> SnapshotFinalEvents:
        """From behind a cursor."""
        reading = cls(run, states, kinds)
        if after == NOW:
            reading._floor = Floor(await run(pruned, reading._states, reading._kinds))
            reading._seen = await run(_snapshot)
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
        """The next ends."""
        while True:
            rows: list[Any] = []
            if self._until is not None:
                rows = await self._rest_of(self._until, limit)
            if not rows:
                rows = await self._rest_of(await self._look_again(), limit)
            events = [self._event(row) for row in rows if row["state"] in self._states]
            if len(rows) < limit:
                self._finish()
            if events or not rows:
                return events

    async def _look_again(self) -> Snapshot:
        """A later snapshot."""
        self._finish()
        snapshot: Snapshot = await self._run(_snapshot)
        if snapshot.end < self._seen.end:
            raise OptionError(
                "this cursor is from before the database was moved or restored: its transactions are counted anew "
                "since then; begin again without a cursor"
            )
        self._until = snapshot
        return snapshot

    def _finish(self) -> None:
        """Of what was begun, nothing is left."""
        if self._until is not None:
            self._seen, self._until, self._position = self._until, None, BEGINNING

    async def _rest_of(self, until: Snapshot, limit: int) -> list[Any]:
        number, task_id = max((self._seen.end, -1), self._position)
        gone, rows = await self._run(
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
        """Below this number there was nothing more to give, except to those that are still under way."""
        late = [number for number in self._seen.open if number not in until.open and number >= self._position[0]]
        return min([max(self._seen.end - 1, self._position[0]), *(number - 1 for number in late)])

    def _event(self, row: Any) -> Event:
        number, until = row["number"], self._until or self._seen
        # Whoever resumes comes to those, too, that are still under way in the later snapshot.
        late = (under_way - 1 for under_way in (*self._seen.open, *until.open))
        floor = self._floor.suffix(min([max(self._seen.end, number), *late]))
        return event_of(row, f"{self._seen}/{self._until}/{number}-{row['task_id']}{floor}")


_EVENT_COLUMNS: Final = field_names(Event)
_read_event: Final[Callable[[Sequence[Any]], Event]] = row_reader(Event, _EVENT_COLUMNS)


def event_of(row: Any, cursor: str) -> Event:
    """A row of the history as an event."""
    return replace(_read_event(row[: len(_EVENT_COLUMNS)]), cursor=cursor)


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
    # What was pruned is asked afterwards: what goes between the two is noticed then.
    rows = await session.rows("endings", late, number, task_id, end, under_way, position, position_id, limit)
    return await pruned(session, states, kinds), rows


async def pruned(session: Session, states: list[State], kinds: list[str] | None) -> int:
    """The greatest number that is gone; of any kind, if none are given."""
    number: int = await session.value("pruned", states, kinds)
    return number
