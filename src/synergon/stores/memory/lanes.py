"""Ready tasks in order: higher priority first, then lower id."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final

from synergon.lifecycle import State
from synergon.stores.memory.row import Row, Tally

READY: Final = State.READY

SLACK: Final = 64
"""Outdated entries that are not worth a rebuild."""

Place = tuple[int, int]
"""Where a task stands in the order: its negated priority and its id. Smaller goes first."""


class Lane:
    """The ready tasks of one queue and kind.

    Most tasks arrive in order and with the same priority: they wait in a plain line, which costs nothing to join
    or to leave. The rest (other priorities, retries, tasks that were due later) wait in a heap beside it.

    A task that leaves other than by its turn leaves its entry behind. An entry counts only while the row itself
    says the same place, and then it is as good as any other entry of that task, because the place follows from the
    row alone. Outdated entries never outnumber the good ones by more than `SLACK` when one is left behind.
    """

    __slots__ = ("_heap", "_line", "_line_priority", "queue", "tally")

    def __init__(self, queue: str, tally: Tally) -> None:
        self.queue = queue
        self.tally = tally
        self._line: deque[Row] = deque()
        self._line_priority = 0
        self._heap: list[tuple[int, int, Row]] = []

    def add(self, row: Row) -> None:
        """Let a ready task wait here."""
        line = self._line
        if not line:
            self._line_priority = row.priority
            line.append(row)
        elif row.priority == self._line_priority and row.id > line[-1].id:
            line.append(row)
        else:
            heappush(self._heap, (-row.priority, row.id, row))

    def forget_one(self) -> None:
        """A task of this lane is not ready any more; its row will say so from now on."""
        if len(self._line) + len(self._heap) > 2 * self.tally[READY] + SLACK:
            self._rebuild()

    def head(self, now: int) -> Place | None:
        """The place of the first task that may start."""
        line_head, heap_head = self._line_head(now), self._heap_head(now)
        if line_head is None or heap_head is None:
            return line_head or heap_head
        return min(line_head, heap_head)

    def take(self, limit: int, now: int, before: Place | None) -> list[Row]:
        """Remove the first tasks, at most `limit` and only those that stand before `before`."""
        taken: list[Row] = []
        while len(taken) < limit:
            place = self.head(now)
            if place is None or (before is not None and place > before):
                break
            row = self._pop(place)
            # At once, so that another entry of the same task cannot be taken too.
            row.state = State.RUNNING
            taken.append(row)
        return taken

    def _pop(self, place: Place) -> Row:
        if self._line and self._line[0].id == place[1]:
            return self._line.popleft()
        return heappop(self._heap)[2]

    def _line_head(self, now: int) -> Place | None:
        line = self._line
        while line:
            row = line[0]
            if self._may_start(row, self._line_priority, now):
                return (-self._line_priority, row.id)
            line.popleft()
        return None

    def _heap_head(self, now: int) -> Place | None:
        heap = self._heap
        while heap:
            negated_priority, row_id, row = heap[0]
            if self._may_start(row, -negated_priority, now):
                return (negated_priority, row_id)
            heappop(heap)
        return None

    def _may_start(self, row: Row, priority: int, now: int) -> bool:
        # An expired task cannot become startable again in its place, so its entry may go although it stays `ready`
        # until somebody ends it.
        return self._counts(row, priority) and (row.expires_at is None or row.expires_at > now)

    def _counts(self, row: Row, priority: int) -> bool:
        return row.state is READY and row.priority == priority and row.task.queue == self.queue

    def _rebuild(self) -> None:
        self._line = deque(row for row in self._line if self._counts(row, self._line_priority))
        in_line = {row.id for row in self._line}
        good = {
            row.id: (negated_priority, row.id, row)
            for negated_priority, _, row in self._heap
            if self._counts(row, -negated_priority) and row.id not in in_line
        }
        self._heap = list(good.values())
        heapify(self._heap)
