"""An index of the tasks of key queues, by state and in claim order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from synergon.model.lifecycle import State
from synergon.stores.memory.row import Row
from synergon.stores.memory.task_index import TaskIndex
from synergon.stores.rows import KeyQueueName


def key_queue_name(row: Row) -> KeyQueueName | None:
    """The key queue of the task. None if the task has no limit key or waits for dependencies."""
    return None if row.limit_key is None or row.is_dependent else (row.task.kind, row.limit_key)


def rank(row: Row) -> int:
    """The position of a task in claim order as one number. The first task has the greatest number."""
    return (row.priority << 64) - row.id


class KeyQueue:
    """The live tasks of one kind and limit key. Changed by `Tables` only."""

    __slots__ = ("key", "kind", "ready", "running", "scheduled", "size", "waiting")

    def __init__(self, kind: str, key: str) -> None:
        self.kind: Final = kind
        self.key: Final = key
        self.size: int = 0
        self.running: int = 0
        self.scheduled: Final = TaskIndex(lambda row: row.run_at if self._has(row, State.SCHEDULED) else None)
        self.ready: Final[dict[str, TaskIndex]] = {}
        """The ready tasks of each queue, in reverse claim order."""
        self.waiting: Final[dict[str, TaskIndex]] = {}
        """The waiting tasks of each queue, in claim order."""

    def _has(self, row: Row, state: State) -> bool:
        return row.state is state and row.limit_key == self.key and not row.is_dependent

    def join(self, row: Row) -> None:
        """Add a task in its current state."""
        self.size += 1
        match row.state:
            case State.RUNNING:
                self.running += 1
            case State.SCHEDULED:
                self.scheduled.add(row, row.run_at)
            case State.READY:
                self._index(State.READY, row.task.queue).add(row, rank(row))
            case _:
                self._index(State.WAITING, row.task.queue).add(row, -rank(row))

    def leave(self, row: Row) -> None:
        """Remove a task. The caller then changes its state."""
        self.size -= 1
        match row.state:
            case State.RUNNING:
                self.running -= 1
            case State.SCHEDULED:
                self.scheduled.forget_one()
            case state:
                self._index(state, row.task.queue).forget_one()

    def _index(self, state: State, queue: str) -> TaskIndex:
        agendas = self.ready if state is State.READY else self.waiting
        agenda = agendas.get(queue)
        if agenda is None:
            sign = 1 if state is State.READY else -1
            agenda = agendas[queue] = TaskIndex(
                lambda row: sign * rank(row) if row.task.queue == queue and self._has(row, state) else None
            )
        return agenda

    @property
    def ready_count(self) -> int:
        """The number of ready tasks."""
        return sum(agenda.count for agenda in self.ready.values())

    @property
    def waiting_count(self) -> int:
        """The number of waiting tasks."""
        return sum(agenda.count for agenda in self.waiting.values())

    def rows(self, state: State) -> Iterator[Row]:
        """The rows of the tasks in this state, `ready` or `waiting`, in any order."""
        agendas = self.ready if state is State.READY else self.waiting
        return (row for agenda in agendas.values() for row in agenda.rows())

    def last_ready(self) -> Row | None:
        """The ready task that comes last in claim order. None if no task is ready."""
        rows = [row for agenda in self.ready.values() if (row := agenda.first()) is not None]
        return min(rows, key=rank, default=None)
