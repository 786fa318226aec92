"""Lines: of the tasks with the same kind and limit key only so many are `ready` or `running` at once.

Promise: after every move no task of a line waits that has a place, and none is `ready` that has none. Who has a place
follows from the rows alone, so that putting a line in order twice does no more than doing it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import State
from synergon.model.limits import NewRate
from synergon.stores.memory.due_index import Agenda
from synergon.stores.memory.row import Row
from synergon.stores.rules import rates
from synergon.stores.rules.shared_capacity import UNLIMITED

if TYPE_CHECKING:
    from synergon.stores.memory.tables import Tables

KeyQueueName = tuple[str, str]
"""Kind and limit key."""


def key_queue_name(row: Row) -> KeyQueueName | None:
    """The line that the task stands in. One that waits for a group is in none yet."""
    return None if row.limit_key is None or row.after_group is not None else (row.task.kind, row.limit_key)


def limit_name(kind: str) -> str:
    """The limit that every line of the kind has."""
    return f"key:{kind}"


def rank(row: Row) -> int:
    """One number for the place in the order: higher goes first."""
    return (row.priority << 64) - row.id


class KeyQueue:
    """The live tasks of one kind and limit key, by what they do. Derived from the rows, by `Tables` alone."""

    __slots__ = ("key", "kind", "ready", "running", "scheduled", "size", "waiting")

    def __init__(self, kind: str, key: str) -> None:
        self.kind: Final = kind
        self.key: Final = key
        self.size = 0
        self.running = 0
        self.scheduled: Final = Agenda(lambda row: row.run_at if self._has(row, State.SCHEDULED) else None)
        self.ready: Final[dict[str, Agenda]] = {}
        """By queue, the last in order first."""
        self.waiting: Final[dict[str, Agenda]] = {}
        """By queue, the first in order first."""

    def _has(self, row: Row, state: State) -> bool:
        return row.state is state and row.limit_key == self.key and row.after_group is None

    def join(self, row: Row) -> None:
        """A task is in the state that its row says."""
        self.size += 1
        match row.state:
            case State.RUNNING:
                self.running += 1
            case State.SCHEDULED:
                self.scheduled.add(row, row.run_at)
            case State.READY:
                self._agenda(State.READY, row.task.queue).add(row, rank(row))
            case _:
                self._agenda(State.WAITING, row.task.queue).add(row, -rank(row))

    def leave(self, row: Row) -> None:
        """A task is about to leave the state that its row says."""
        self.size -= 1
        match row.state:
            case State.RUNNING:
                self.running -= 1
            case State.SCHEDULED:
                self.scheduled.forget_one()
            case state:
                self._agenda(state, row.task.queue).forget_one()

    def _agenda(self, state: State, queue: str) -> Agenda:
        agendas = self.ready if state is State.READY else self.waiting
        agenda = agendas.get(queue)
        if agenda is None:
            sign = 1 if state is State.READY else -1
            agenda = agendas[queue] = Agenda(
                lambda row: sign * rank(row) if row.task.queue == queue and self._has(row, state) else None
            )
        return agenda

    @property
    def ready_count(self) -> int:
        """How many may start."""
        return sum(agenda.count for agenda in self.ready.values())

    @property
    def waiting_count(self) -> int:
        """How many have no place."""
        return sum(agenda.count for agenda in self.waiting.values())

    def rows(self, state: State) -> Iterator[Row]:
        """Those that are ready, or those that have no place; in no order."""
        agendas = self.ready if state is State.READY else self.waiting
        return (row for agenda in agendas.values() for row in agenda.rows())

    def last_ready(self) -> Row | None:
        """The one that would be the first to lose its place."""
        return min(_firsts(self.ready.values()), key=rank, default=None)

    def first_waiting(self, queues: dict[str, int | None]) -> Row | None:
        """The one that is next to get a place: tasks of paused queues get none."""
        is_open = (agenda for queue, agenda in self.waiting.items() if queues[queue] is None)
        return max(_firsts(is_open), key=rank, default=None)


def _firsts(agendas: Iterable[Agenda]) -> list[Row]:
    return [row for agenda in agendas if (row := agenda.first()) is not None]


def balance(tables: Tables, key_queue: KeyQueue, now: int) -> None:
    """Give the places of a line to those who have the right to them."""
    limit = tables.limits.get(limit_name(key_queue.kind))
    if limit is None or (limit.value is None and limit.rate is None):
        _let_all_in(tables, key_queue)
        return
    free = UNLIMITED if limit.value is None else max(limit.value - key_queue.running, 0)
    if limit.rate is None:
        _give_permits(tables, key_queue, free)
        return
    _join_key_queue(tables, key_queue, now)
    allowed = rates.allowed(limit.rate, tables.next_starts.get((key_queue.kind, key_queue.key)), now)
    _give_permits(tables, key_queue, min(free, allowed))
    if free > 0 and allowed == 0:
        _defer_first(tables, key_queue, limit.rate, now)


def _join_key_queue(tables: Tables, key_queue: KeyQueue, now: int) -> None:
    """Whose turn has come is in line again, noticed or not: nobody behind it may take the place meanwhile."""
    for row in key_queue.scheduled.due(now, key_queue.scheduled.count):
        tables.shift(row, State.WAITING)


def _let_all_in(tables: Tables, key_queue: KeyQueue) -> None:
    """A line without end has a place for everybody, in paused queues too: there is none to be kept from others."""
    for agenda in key_queue.waiting.values():
        while (row := agenda.first()) is not None:
            tables.shift(row, State.READY)


def _give_permits(tables: Tables, key_queue: KeyQueue, permits: int) -> None:
    for queue, agenda in key_queue.ready.items():
        while tables.queues[queue] is not None and (row := agenda.first()) is not None:
            tables.shift(row, State.WAITING)
    while key_queue.ready_count > permits and (last := key_queue.last_ready()) is not None:
        tables.shift(last, State.WAITING)
    while permits > 0 and (first := key_queue.first_waiting(tables.queues)) is not None:
        if key_queue.ready_count >= permits:
            last = key_queue.last_ready()
            if last is None or rank(last) > rank(first):
                return
            tables.shift(last, State.WAITING)
        tables.shift(first, State.READY)


def _defer_first(tables: Tables, key_queue: KeyQueue, rate: NewRate, now: int) -> None:
    """Only the rate holds the line up: its first task comes back when the rate lets one start."""
    first = key_queue.first_waiting(tables.queues)
    next_start = rates.next_start(rate, tables.next_starts.get((key_queue.kind, key_queue.key)), now)
    awaited = key_queue.scheduled.next_moment()
    if first is not None and (awaited is None or awaited > next_start):
        tables.put_off(first, next_start)


def charge(tables: Tables, started: Iterable[Row], now: int) -> None:
    """Let the rates of their lines know of tasks that have just started."""
    for row in started:
        name = key_queue_name(row)
        limit = None if name is None else tables.limits.get(limit_name(row.task.kind))
        if name is not None and limit is not None and limit.rate is not None:
            tables.next_starts[name] = rates.after(limit.rate, tables.next_starts.get(name), now, 1)
            balance(tables, tables.key_queues[name], now)


def balance_kind(tables: Tables, kind: str, now: int) -> None:
    """Put all lines of a kind in order."""
    for key_queue in tables.key_queues_of(kind):
        balance(tables, key_queue, now)


def balance_queue(tables: Tables, queue: str, now: int) -> None:
    """Put all lines in order that have tasks in this queue which are not running."""
    for key_queue in list(tables.key_queues.values()):
        if queue in key_queue.ready or queue in key_queue.waiting:
            balance(tables, key_queue, now)


def forget_past_starts(tables: Tables, limit: int, now: int) -> None:
    """Drop what rates remember of lines that may start as if they had never done before."""
    past = [name for name, moment in tables.next_starts.items() if moment <= now]
    for name in past[:limit]:
        del tables.next_starts[name]
