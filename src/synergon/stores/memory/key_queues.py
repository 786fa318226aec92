"""An index of the tasks of key queues, by state and in claim order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from synergon.model.lifecycle import State
from synergon.stores.memory.row import Row
from synergon.stores.memory.task_index import TaskIndex
from synergon.stores.rows import KeyQueueName


def key_queue_name(row: Row) -> KeyQueueName | None:
    """The key queue of the task. None without a limit key, and while the task waits for a group."""
    return None if row.limit_key is None or row.after_group is not None else (row.task.kind, row.limit_key)


def rank(row: Row) -> int:
    """The position of a task in claim order as one number, highest first."""
    return (row.priority << 64) - row.id


class KeyQueue:
    """The live tasks of one kind and limit key. Only `Tables` changes it."""

    __slots__ = ("key", "kind", "ready", "running", "scheduled", "size", "waiting")

    def __init__(self, kind: str, key: str) -> None:
        self.kind: Final = kind
        self.key: Final = key
        self.size = 0
        self.running = 0
        self.scheduled: Final = TaskIndex(lambda row: row.run_at if self._has(row, State.SCHEDULED) else None)
        self.ready: Final[dict[str, TaskIndex]] = {}
        """By queue, the last in claim order first."""
        self.waiting: Final[dict[str, TaskIndex]] = {}
        """By queue, the first in claim order first."""

    def _has(self, row: Row, state: State) -> bool:
        return row.state is state and row.limit_key == self.key and row.after_group is None

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
        """Remove a task. Called before its state changes."""
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
        """The ready tasks or the waiting tasks, in no order."""
        agendas = self.ready if state is State.READY else self.waiting
        return (row for agenda in agendas.values() for row in agenda.rows())

    def last_ready(self) -> Row | None:
        """The ready task that comes last in claim order."""
        rows = [row for agenda in self.ready.values() if (row := agenda.first()) is not None]
        return min(rows, key=rank, default=None)
