"""A ready group of the memory store: ready tasks in claim order, higher priority first, then lower `fair_tag`, then
lower id."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from typing import Final

from synergon.model.lifecycle import State
from synergon.stores.memory.row import Row

READY: Final = State.READY

SLACK: Final = 64
"""How many outdated entries are tolerated before the ready group is rebuilt."""

Entry = tuple[int, int, int, Row]
"""Negated priority, tag, id and row of a task."""

Position = tuple[int, int, int]
"""The position of a task in claim order: its negated priority, its tag and its id. The smallest is first."""


class ReadyGroup:
    """The ready tasks of one kind, queue and requirements.

    Most tasks become ready in claim order and with equal priority. They are in a deque, where adding and taking a task
    costs constant time. All others (different priorities, retries, tasks that were due later, tasks of tenants that
    take turns) are in a heap.

    A task that is removed from the middle does not remove its entry. An entry is valid only while the row has the
    position of the entry; outdated entries are skipped. They never outnumber the valid ones by more than `SLACK`.
    """

    __slots__ = ("_fifo", "_fifo_priority", "_heap", "count", "queue", "requirements")

    def __init__(self, queue: str, requirements: str) -> None:
        self.queue: Final = queue
        self.requirements: Final = requirements
        self.count: int = 0
        """The number of ready tasks in the group."""
        self._fifo: deque[Row] = deque()
        self._fifo_priority = 0
        self._heap: list[Entry] = []

    def join(self, row: Row) -> None:
        """Add a task that has become ready."""
        self.count += 1
        self.add(row)

    def add(self, row: Row) -> None:
        """Add an entry for a ready task."""
        fifo = self._fifo
        if row.task.fair_key is not None:
            heappush(self._heap, (-row.priority, row.fair_tag, row.id, row))
        elif not fifo:
            self._fifo_priority = row.priority
            fifo.append(row)
        elif row.priority == self._fifo_priority and row.id > fifo[-1].id:
            fifo.append(row)
        else:
            heappush(self._heap, (-row.priority, 0, row.id, row))

    def forget_one(self) -> None:
        """Note that a ready task of the group changes its state. The caller changes the row, and the entry is skipped
        later."""
        self.count -= 1
        if len(self._fifo) + len(self._heap) > 2 * self.count + SLACK:
            self._rebuild()

    def head(self, now: int) -> Position | None:
        """The position of the first task that has not expired. None if there is no such task."""
        position = self._fifo_head(now)
        if not self._heap:
            return position
        beside = self._heap_head(now)
        return beside if position is None or (beside is not None and beside < position) else position

    def pop(self, head: Position) -> Row:
        """Remove and return the first task, whose position `head` has just returned."""
        if self._fifo and self._fifo[0].id == head[2]:
            return self._fifo.popleft()
        return heappop(self._heap)[3]

    def first(self, most: int, now: int) -> list[Row]:
        """The first `most` tasks that have not expired. They are not removed."""
        if most <= 0 or self.head(now) is None:  # this drops outdated entries at the front
            return []
        rows = (row for row in self._in_order(iter(self._fifo), self._heap_in_order()) if _may_start(row, now))
        return list(islice(rows, most))

    def rows(self, after: Position | None = None) -> Iterator[Row]:
        """The ready tasks after this position, in order, including expired ones."""
        position = (-self._fifo_priority, 0, self._fifo[-1].id) if self._fifo else None
        fifo = iter(self._fifo) if position is not None and (after is None or position > after) else iter(())
        for row in self._in_order(fifo, sorted(self._heap)):
            if after is None or (-row.priority, row.fair_tag, row.id) > after:
                yield row

    def oldest(self) -> int | None:
        """The due time of the oldest ready task. None if no task is ready."""
        first = next((row.run_at for row in self._fifo if self._counts(row, self._fifo_priority)), None)
        beside = [row.run_at for priority, tag, _, row in self._heap if self._counts(row, -priority, tag)]
        return min(beside if first is None else (*beside, first), default=None)

    def _in_order(self, fifo: Iterator[Row], beside: Iterable[Entry]) -> Iterator[Row]:
        """The tasks of the deque and of the given heap entries in claim order, without outdated entries."""
        entries = ((-row.priority, 0, row.id, row) for row in fifo if self._counts(row, self._fifo_priority))
        good = (entry for entry in beside if self._counts(entry[3], -entry[0], entry[1]))
        last_id = 0
        for _, _, task_id, row in merge(entries, good):
            if task_id != last_id:  # a task whose priority was changed and changed back has several valid entries
                yield row
            last_id = task_id

    def _heap_in_order(self) -> Iterator[Entry]:
        """The entries of the heap in order, without removing them. The cost depends on how many entries are read, not
        on the size of the heap."""
        heap = self._heap
        following = [(heap[0], 0)] if heap else []
        while following:
            entry, index = heappop(following)
            yield entry
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(heap):
                    heappush(following, (heap[child], child))

    def _fifo_head(self, now: int) -> Position | None:
        fifo, priority = self._fifo, self._fifo_priority
        while fifo:
            row = fifo[0]
            if self._counts(row, priority) and _may_start(row, now):
                return (-priority, 0, row.id)
            fifo.popleft()
        return None

    def _heap_head(self, now: int) -> Position | None:
        heap = self._heap
        while heap:
            negated_priority, tag, task_id, row = heap[0]
            if self._counts(row, -negated_priority, tag) and _may_start(row, now):
                return (negated_priority, tag, task_id)
            heappop(heap)
        return None

    def _counts(self, row: Row, priority: int, tag: int = 0) -> bool:
        task = row.task
        return (
            row.state is READY
            and row.priority == priority
            and row.fair_tag == tag
            and task.queue == self.queue
            and task.requirements == self.requirements
        )

    def _rebuild(self) -> None:
        self._fifo = deque(row for row in self._fifo if self._counts(row, self._fifo_priority))
        in_fifo = {row.id for row in self._fifo}
        good = {
            row.id: (negated_priority, tag, row.id, row)
            for negated_priority, tag, _, row in self._heap
            if self._counts(row, -negated_priority, tag) and row.id not in in_fifo
        }
        self._heap = list(good.values())
        heapify(self._heap)


def _may_start(row: Row, now: int) -> bool:
    return row.expires_at is None or row.expires_at > now


class ReadyCommands(ReadyGroup):
    """The ready commands of one kind, queue, requirements and target server. If one of them gets no permit, the others
    get none either."""

    __slots__ = ("target",)

    def __init__(self, queue: str, requirements: str, target: str | None) -> None:
        super().__init__(queue, requirements)
        self.target: Final = target

    def _counts(self, row: Row, priority: int, tag: int = 0) -> bool:
        return row.task.target == self.target and super()._counts(row, priority, tag)
