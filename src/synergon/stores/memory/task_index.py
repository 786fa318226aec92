"""An index of tasks by a number: the moment at which they are due or expire, or their position in claim order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from synergon.stores.memory.row import Row

SLACK: Final = 64
"""How many outdated entries are tolerated before the index is rebuilt."""


class TaskIndex:
    """Returns tasks in ascending order of a number, which is called their moment here.

    A task whose moment changes does not remove its old entry. An entry is valid only while the row has the moment of
    the entry; outdated entries are skipped. They never outnumber the valid ones by more than `SLACK`, so memory use and
    speed do not depend on how often tasks change.
    """

    __slots__ = ("_entries", "_moment_of", "count")

    def __init__(self, moment_of: Callable[[Row], int | None]) -> None:
        self._moment_of = moment_of
        self._entries: list[tuple[int, int, Row]] = []
        self.count: int = 0
        """The number of tasks in the index."""

    def add(self, row: Row, moment: int) -> None:
        """Add a task with its moment."""
        if len(self._entries) > 2 * self.count + SLACK:
            self._rebuild()
        heappush(self._entries, (moment, row.id, row))
        self.count += 1

    def forget_one(self) -> None:
        """Note that one entry becomes outdated. The caller changes the row, and the entry is skipped later."""
        self.count -= 1
        if len(self._entries) > 2 * self.count + SLACK:
            self._rebuild()

    def due(self, now: int, limit: int) -> list[Row]:
        """Remove and return at most `limit` tasks whose moment has come, earliest first. The caller must change the
        moment or state of each of them."""
        found: dict[int, Row] = {}  # a task whose moment was changed and changed back has several valid entries
        while len(found) < limit:
            moment = self.next_moment()
            if moment is None or moment > now:
                break
            row = heappop(self._entries)[2]
            found[row.id] = row
        return list(found.values())

    def next_moment(self) -> int | None:
        """The earliest moment in the index. None if the index is empty."""
        entry = self._first()
        return None if entry is None else entry[0]

    def first(self) -> Row | None:
        """The task with the earliest moment. None if the index is empty."""
        entry = self._first()
        return None if entry is None else entry[2]

    def firsts(self, limit: int) -> list[Row]:
        """The tasks with the earliest moments, in order, at most `limit`."""
        found: dict[int, tuple[int, int, Row]] = {}
        while len(found) < limit and (entry := self._first()) is not None:
            heappop(self._entries)
            found[entry[1]] = entry
        for entry in found.values():
            heappush(self._entries, entry)
        return [entry[2] for entry in found.values()]

    def rows(self) -> list[Row]:
        """All tasks in the index, in no order."""
        return list({row.id: row for moment, _, row in self._entries if self._moment_of(row) == moment}.values())

    def _first(self) -> tuple[int, int, Row] | None:
        entries = self._entries
        while entries:
            entry = entries[0]
            if self._moment_of(entry[2]) == entry[0]:
                return entry
            heappop(entries)
        return None

    def _rebuild(self) -> None:
        good = {row.id: (moment, row.id, row) for moment, _, row in self._entries if self._moment_of(row) == moment}
        self._entries = list(good.values())
        heapify(self._entries)
