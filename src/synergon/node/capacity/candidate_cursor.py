"""How far the candidates of one kind were looked through, and where others may stand that were not there then.

Promise: what is new is found with a few short looks, however many were refused before it. What comes back in the midst
of those that were seen (a retry, a delay that is over, a queue that is resumed) is found by a walk from the front, and
such walks are made as often as a tenth of the time allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from synergon.model.task_records import TaskRecord

Position = tuple[int, int]
"""A priority and an id: lower priorities stand behind higher ones, and larger ids behind smaller ones."""

SHORT_PASS: Final = 200
"""So many candidates are looked through from the front each time: that is as quick as anything."""
MOST_LEVELS: Final = 10
"""Behind so many priorities new candidates are looked for; with more of them all are looked through."""
PASS_SHARE: Final = 0.1
"""How much of its time a kind may spend on walks from the front, unless there is reason for one."""


class CandidateCursor:
    """One walk through the candidates, from the front as far as it came."""

    def __init__(self, began_at: float) -> None:
        self.cursor: Position | None = None
        """Behind this nothing was looked at yet."""
        self._began_at = began_at
        self._spent_seconds = 0.0
        self._seen = 0
        self._levels: dict[int, int] = {}
        """The largest id that was seen of each priority; a task that is new has a larger one."""

    def note(self, records: Sequence[TaskRecord], spent_seconds: float = 0.0) -> None:
        """These were looked at, one behind the other."""
        self._seen += len(records)
        self._spent_seconds += spent_seconds
        for record in records:
            self._levels[record.priority] = max(record.id, self._levels.get(record.priority, record.id))
        if records:
            last = records[-1].priority, records[-1].id
            if self.cursor is None or _order(last) > _order(self.cursor):
                self.cursor = last

    def gaps(self) -> list[Position | None]:
        """Behind each of these, before the next one that was seen, there may be new ones; behind the cursor too."""
        ends = sorted(self._levels.items(), reverse=True)
        return [None, *(end for end in ends if end != self.cursor)]

    def next_at(self) -> float:
        """From when on the next walk from the front may begin, by the monotonic clock."""
        if self._seen <= SHORT_PASS or len(self._levels) > MOST_LEVELS:
            return self._began_at
        return self._began_at + self._spent_seconds / PASS_SHARE


def _order(position: Position) -> tuple[int, int]:
    return -position[0], position[1]
