"""Ready tasks in order: higher priority first, then lower id."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, merge
from typing import Final

from synergon.model.lifecycle import State
from synergon.stores.memory.row import Row

READY: Final = State.READY

SLACK: Final = 64
"""Outdated entries that are not worth a rebuild."""

Position = tuple[int, int]
"""Where a task stands in the order: its negated priority and its id. Smaller goes first."""


class ReadyGroup:
    """The ready tasks of one queue and kind that have the same requirements.

    Most tasks arrive in order and with the same priority: they wait in a plain line, which costs nothing to join
    or to leave. The rest (other priorities, retries, tasks that were due later) wait in a heap beside it.

    A task that leaves other than by its turn leaves its entry behind. An entry counts only while the row itself
    says the same place, and then it is as good as any other entry of that task, because the place follows from the
    row alone. Outdated entries never outnumber the good ones by more than `SLACK` when one is left behind.
    """

    __slots__ = ("_fifo", "_fifo_priority", "_heap", "count", "queue", "requirements")

    def __init__(self, queue: str, requirements: str) -> None:
        self.queue: Final = queue
        self.requirements: Final = requirements
        self.count = 0
        """How many tasks are ready here."""
        self._fifo: deque[Row] = deque()
        self._fifo_priority = 0
        self._heap: list[tuple[int, int, Row]] = []

    def join(self, row: Row) -> None:
        """A task has become ready."""
        self.count += 1
        self.add(row)

    def add(self, row: Row) -> None:
        """Give a ready task an entry."""
        fifo = self._fifo
        if not fifo:
            self._fifo_priority = row.priority
            fifo.append(row)
        elif row.priority == self._fifo_priority and row.id > fifo[-1].id:
            fifo.append(row)
        else:
            heappush(self._heap, (-row.priority, row.id, row))

    def forget_one(self) -> None:
        """A task of this lane is not ready any more; its row will say so from now on."""
        self.count -= 1
        if len(self._fifo) + len(self._heap) > 2 * self.count + SLACK:
            self._rebuild()

    def head(self, now: int) -> Position | None:
        """The place of the first task that may start."""
        position = self._fifo_head(now)
        if not self._heap:
            return position
        beside = self._heap_head(now)
        return beside if position is None or (beside is not None and beside < position) else position

    def peek(self, head: Position) -> Row:
        """The task that stands at the head, as `head` has just told."""
        if self._fifo and self._fifo[0].id == head[1]:
            return self._fifo[0]
        return self._heap[0][2]

    def pop(self, head: Position) -> Row:
        """Take the task that stands at the head, as `head` has just told."""
        if self._fifo and self._fifo[0].id == head[1]:
            return self._fifo.popleft()
        return heappop(self._heap)[2]

    def first(self, most: int, now: int) -> list[Row]:
        """The first few tasks that may start; they stay."""
        found: dict[int, Row] = {}
        while len(found) < most and (head := self.head(now)) is not None:
            row = self.pop(head)
            found[row.id] = row
        for row in found.values():
            self.add(row)
        return list(found.values())

    def rows(self, after: Position | None = None) -> Iterator[Row]:
        """The ready tasks behind this place, in order; expired ones may be among them."""
        position = (-self._fifo_priority, self._fifo[-1].id) if self._fifo else None
        fifo = iter(self._fifo) if position is not None and (after is None or position > after) else iter(())
        entries = ((-row.priority, row.id, row) for row in fifo if self._counts(row, self._fifo_priority))
        beside = sorted(entry for entry in self._heap if self._counts(entry[2], -entry[0]))
        last_id = 0
        for negated_priority, task_id, row in merge(entries, beside):
            # A task whose priority was changed to and fro has several good entries.
            if task_id != last_id and (after is None or (negated_priority, task_id) > after):
                yield row
            last_id = task_id

    def _fifo_head(self, now: int) -> Position | None:
        fifo, priority = self._fifo, self._fifo_priority
        while fifo:
            row = fifo[0]
            if self._counts(row, priority) and (row.expires_at is None or row.expires_at > now):
                return (-priority, row.id)
            fifo.popleft()
        return None

    def _heap_head(self, now: int) -> Position | None:
        heap = self._heap
        while heap:
            negated_priority, task_id, row = heap[0]
            if self._counts(row, -negated_priority) and (row.expires_at is None or row.expires_at > now):
                return (negated_priority, task_id)
            heappop(heap)
        return None

    def _counts(self, row: Row, priority: int) -> bool:
        task = row.task
        return (
            row.state is READY
            and row.priority == priority
            and task.queue == self.queue
            and task.requirements == self.requirements
        )

    def _rebuild(self) -> None:
        self._fifo = deque(row for row in self._fifo if self._counts(row, self._fifo_priority))
        in_fifo = {row.id for row in self._fifo}
        good = {
            row.id: (negated_priority, row.id, row)
            for negated_priority, _, row in self._heap
            if self._counts(row, -negated_priority) and row.id not in in_fifo
        }
        self._heap = list(good.values())
        heapify(self._heap)


class ReadyCommands(ReadyGroup):
    """The ready commands of one queue and kind that are for the same server, or for any: what one of them does not get,
    no other one gets."""

    __slots__ = ("target",)

    def __init__(self, queue: str, requirements: str, target: str | None) -> None:
        super().__init__(queue, requirements)
        self.target: Final = target

    def _counts(self, row: Row, priority: int) -> bool:
        return row.task.target == self.target and super()._counts(row, priority)
