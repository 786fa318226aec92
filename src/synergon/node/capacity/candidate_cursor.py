"""The cursor of a poll: how far the candidates of one kind were read, and where new ones may be.

A few short queries find new candidates, even behind many rejected ones. Candidates that return among those that were
read (a retry, a due task, a resumed queue) are found by a pass from the first candidate. Such passes take at most a
tenth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from synergon.model.task_records import TaskRecord

Position = tuple[int, int]
"""A priority and an id, in claim order: higher priorities first, then smaller ids."""

SHORT_PASS: Final = 200
"""Up to how many candidates each pass starts from the first one, because that costs nearly nothing."""
MOST_LEVELS: Final = 10
"""Up to how many priorities new candidates are searched for in each. With more priorities, all candidates are read."""
PASS_SHARE: Final = 0.1
"""The share of time that a poll may spend on passes from the first candidate, unless such a pass is required."""


class CandidateCursor:
    """One pass through the candidates: how far it has come, and what was read."""

    def __init__(self, began_at: float) -> None:
        self.cursor: Position | None = None
        """The position of the last candidate in claim order that was read. None before the first."""
        self._began_at = began_at
        self._spent_seconds = 0.0
        self._seen = 0
        self._levels: dict[int, int] = {}
        """For each priority, the largest id that was read. A new task has a larger one."""

    def note(self, records: Sequence[TaskRecord], spent_seconds: float = 0.0) -> None:
        """Note that these consecutive candidates were read, and how long that took."""
        self._seen += len(records)
        self._spent_seconds += spent_seconds
        for record in records:
            self._levels[record.priority] = max(record.id, self._levels.get(record.priority, record.id))
        if records:
            last = records[-1].priority, records[-1].id
            if self.cursor is None or _order(last) > _order(self.cursor):
                self.cursor = last

    def gaps(self) -> list[Position | None]:
        """Positions behind which new candidates may be, except the cursor: before all candidates (None), and after the
        last one of each priority."""
        ends = sorted(self._levels.items(), reverse=True)
        return [None, *(end for end in ends if end != self.cursor)]

    def next_at(self) -> float:
        """When the next pass from the first candidate may begin, by the monotonic clock."""
        if self._seen <= SHORT_PASS or len(self._levels) > MOST_LEVELS:
            return self._began_at
        return self._began_at + self._spent_seconds / PASS_SHARE


def _order(position: Position) -> tuple[int, int]:
    return -position[0], position[1]
