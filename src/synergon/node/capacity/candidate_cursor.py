"""The cursor of a poll: how far the candidates of one kind were read, and where new ones may be.

A few short queries find new candidates, even behind many rejected ones. Candidates that return among those that were
read (a retry, a due task, a resumed queue, a task whose tenant has an earlier turn) are found by a pass from the first
candidate. Such passes take at most a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from synergon.model.task_records import TaskRecord

Position = tuple[int, int, int]
"""A priority, the tag of a tenant's turn and an id, in claim order: higher priorities first, then smaller tags, then
smaller ids."""

SHORT_PASS: Final = 200
"""If a pass has read at most this many candidates, the next one starts from the first, because that costs nearly
nothing."""
MOST_LEVELS: Final = 10
"""With at most this many priorities, new candidates are searched for in each. With more, all candidates are read."""
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
        self._levels: dict[int, tuple[int, int]] = {}
        """For each priority, the last tag and id that were read. A new task is ordered after them, unless its tenant's
        turn is earlier."""

    def note(self, records: Sequence[TaskRecord], spent_seconds: float = 0.0) -> None:
        """Note that these consecutive candidates were read, and how long that took."""
        self._seen += len(records)
        self._spent_seconds += spent_seconds
        for record in records:
            turn = record.fair_tag, record.id
            self._levels[record.priority] = max(turn, self._levels.get(record.priority, turn))
        if records:
            last = records[-1].priority, records[-1].fair_tag, records[-1].id
            if self.cursor is None or _order(last) > _order(self.cursor):
                self.cursor = last

    def gaps(self) -> list[Position | None]:
        """The positions after which new candidates may be: the start (None), and the last candidate of each priority.
        The cursor is left out."""
        ends = [(priority, *turn) for priority, turn in sorted(self._levels.items(), reverse=True)]
        return [None, *(end for end in ends if end != self.cursor)]

    def next_at(self) -> float:
        """When the next pass from the first candidate may begin, by the monotonic clock."""
        if self._seen <= SHORT_PASS or len(self._levels) > MOST_LEVELS:
            return self._began_at
        return self._began_at + self._spent_seconds / PASS_SHARE


def _order(position: Position) -> Position:
    return -position[0], *position[1:]
