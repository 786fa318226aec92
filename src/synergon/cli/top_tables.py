"""The tables of `synergon top`: what a reading of the cluster says about nodes, queues, kinds and running tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from rich.table import Table
from rich.text import Text

from synergon.cli.nodes import threads_text
from synergon.cli.output import duration, new_table, short
from synergon.client.node_overview import is_alive
from synergon.engine import Engine
from synergon.model.cluster_status import ClusterStatus
from synergon.model.lifecycle import State
from synergon.model.nodes import NodeRecord
from synergon.model.task_records import TaskRecord
from synergon.options.durations import rough

ENDED: Final = (State.SUCCEEDED, State.FAILED, State.CANCELLED)
TASKS_READ: Final = 200
"""How many running tasks are read at most, those with the lowest ids."""


class Reading(NamedTuple):
    """The cluster at one moment."""

    status: ClusterStatus
    nodes: tuple[NodeRecord, ...]
    running: tuple[TaskRecord, ...]

    @property
    def ended(self) -> dict[str, int]:
        """How many tasks of each queue have ended and are kept."""
        return {queue.name: sum(queue.counts.get(state, 0) for state in ENDED) for queue in self.status.queues}

    @property
    def counted_at(self) -> datetime | None:
        """When the live tasks were counted, if there are many of them. None: just now."""
        return next((queue.counted_at for queue in self.status.queues if queue.counted_at is not None), None)

    @property
    def running_total(self) -> int:
        """How many tasks run now."""
        return sum(worker.running for worker in self.status.workers)

    def total(self, state: State) -> int:
        """How many tasks are in a state."""
        return sum(queue.counts.get(state, 0) for queue in self.status.queues)


async def read_cluster(engine: Engine) -> Reading:
    """Read what the tables need. Its cost does not grow with the number of tasks."""
    status = await engine.status()
    nodes = [node for node in await engine.nodes() if node.concurrency]
    page = await engine.tasks(state=State.RUNNING, ascending=True, limit=TASKS_READ)
    return Reading(status, tuple(nodes), page.tasks)


class Rates:
    """How many tasks end in a second, and how many start on each node: the differences between readings."""

    def __init__(self) -> None:
        self.ended: dict[str, float] = {}
        """Ended tasks per second, by queue."""
        self.started: dict[str, float] = {}
        """Started tasks per second, by the id of the node. A node publishes how many it has started whenever it renews
        its lease."""
        self._last: Reading | None = None
        self._published: dict[str, tuple[float, int]] = {}

    def add(self, reading: Reading) -> None:
        """Compare a reading with the one before it."""
        now = reading.status.now.timestamp()
        if self._last is not None:
            elapsed = max(now - self._last.status.now.timestamp(), 0.001)
            before = self._last.ended
            # Fewer than before if old tasks were pruned meanwhile.
            self.ended = {
                name: max(number - before.get(name, 0), 0) / elapsed for name, number in reading.ended.items()
            }
        self._last = reading
        for node in reading.nodes:
            at, started = now - node.published_ago, node.state.taken
            last_at, last_started = self._published.get(node.id, (at, started))
            if at - last_at > 0.5:  # it has published again
                self.started[node.id] = max(started - last_started, 0) / (at - last_at)
            elif node.id in self._published:
                continue
            self._published[node.id] = (at, started)


class Cell(NamedTuple):
    """A cell of a table: what it shows, and what it is sorted by."""

    shown: str | Text
    rank: Any


class TopTable(NamedTuple):
    """A table before it is sorted, filtered and cut to the size of the screen."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    numbers: tuple[str, ...] = ()
    elastic: tuple[str, ...] = ()
    dispensable: tuple[str, ...] = ()
    more: int = 0
    """How many rows were not read."""

    def arranged(self, *, sort: str | None, is_reversed: bool, wanted: str) -> TopTable:
        """The rows that contain the wanted text, in any case, sorted by a column. Without one they keep their order."""
        rows = [
            row for row in self.rows if not wanted or any(wanted.lower() in str(cell.shown).lower() for cell in row)
        ]
        if sort is not None and sort in self.headings:
            column = self.headings.index(sort)
            rows.sort(key=lambda row: row[column].rank, reverse=is_reversed)
        elif is_reversed:
            rows.reverse()
        return self._replace(rows=rows)

    def drawn(self, height: int) -> Table:
        """The table, with its headings and as many rows as fit into the height."""
        table = new_table(*self.headings, numbers=self.numbers, elastic=self.elastic, dispensable=self.dispensable)
        for column in table.columns:  # a heading takes one line
            column.header = short(str(column.header))
        for row in self.rows[: max(height - 1, 0)]:
            table.add_row(*(cell.shown for cell in row))
        return table


def _text(shown: str) -> Cell:
    return Cell(short(shown), shown)


def _number(number: float | None, shown: str | None = None) -> Cell:
    return Cell(str(number) if shown is None else shown, -1 if number is None else number)


def _rate(rates: Mapping[str, float], name: str) -> Cell:
    rate = rates.get(name)
    return _number(rate, "" if rate is None else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}")


def nodes_table(reading: Reading, rates: Rates) -> TopTable:
    """The nodes: running tasks, starts in a second, threads and lease."""
    running = {worker.id: worker.running for worker in reading.status.workers}
    rows = []
    for node in reading.nodes:
        number = running.get(node.id, 0)
        lease = max(node.lease_remaining, 0.0)
        rows.append(
            (
                _text(node.name),
                _node_state(node),
                _number(number, f"{number}/{node.concurrency}"),
                _rate(rates.started, node.id),
                _number(None, threads_text(node.state)),
                _number(lease, duration(round(lease)) if lease else "expired"),
                _text(node.process.host),
            )
        )
    return TopTable(
        ("node", "", "running", "starts/s", "threads", "lease", "host"),
        rows,
        numbers=("running", "starts/s", "threads", "lease"),
        elastic=("host",),
        dispensable=("threads", "host"),
    )


def _node_state(node: NodeRecord) -> Cell:
    if not is_alive(node):
        return Cell(Text("dead", style="red"), 2)
    return Cell(Text("cordoned", style="yellow"), 1) if node.is_cordoned else Cell(Text("alive", style="green"), 0)


def queues_table(reading: Reading, rates: Rates) -> TopTable:
    """The queues: tasks in each state, ends in a second, and the age of the oldest ready task."""
    states = (State.READY, State.RUNNING, State.SCHEDULED, State.WAITING)
    rows = []
    for queue in reading.status.queues:
        age = queue.oldest_ready_seconds
        shown = "" if age is None else f"{rough(age)} ({queue.kinds[0].kind})"
        rows.append(
            (
                _text(queue.name),
                *(_number(queue.counts.get(state, 0)) for state in states),
                _rate(rates.ended, queue.name),
                Cell(Text("paused", style="yellow") if queue.is_paused else short(shown), -1 if age is None else age),
            )
        )
    return TopTable(
        ("queue", *states, "ends/s", "oldest ready"),
        rows,
        numbers=(*states, "ends/s"),
        elastic=("oldest ready",),
        dispensable=("waiting", "scheduled"),
    )


def kinds_table(reading: Reading, _: Rates) -> TopTable:
    """The kinds that nodes have or tasks wait for: running tasks, the oldest ready one, failures."""
    nodes = Counter(kind for node in reading.nodes if is_alive(node) for kind in node.kinds)
    running: Counter[str] = Counter()
    for node in reading.nodes:
        running.update(node.state.running if is_alive(node) else {})
    ages: dict[str, float] = {}
    for queue in reading.status.queues:
        for kind in queue.kinds:
            ages[kind.kind] = max(ages.get(kind.kind, 0.0), kind.oldest_ready_seconds)
    failures = reading.status.failures_last_hour
    rows = [
        (
            _text(kind),
            _number(running[kind]),
            _number(ages.get(kind), rough(ages[kind]) if kind in ages else ""),
            _number(failures.get(kind, 0)),
            _number(nodes[kind], str(nodes[kind]) if nodes[kind] else "no node"),
        )
        for kind in sorted({*nodes, *ages, *failures})
    ]
    numbers = ("running", "oldest ready", "failed 1h", "nodes")
    return TopTable(("kind", *numbers), rows, numbers=numbers, dispensable=("nodes", "failed 1h"))


def tasks_table(reading: Reading, _: Rates) -> TopTable:
    """The running tasks, the oldest ones first."""
    names = {node.id: node.name for node in reading.nodes}
    has_titles = any(task.title is not None for task in reading.running)
    rows = []
    for task in reading.running:
        seconds = (reading.status.now - (task.started_at or task.enqueued_at)).total_seconds()
        rows.append(
            (
                _number(task.id),
                _text(task.title or task.kind),
                _text(task.queue),
                _text(names.get(task.node_id or "", "")),
                _number(seconds, duration(max(round(seconds), 0))),
                _number(task.attempts, f"{task.attempts}/{task.max_attempts or '?'}"),
                _text(_note(task)),
            )
        )
    return TopTable(
        ("task", "what", "queue", "node", "for", "tries", "note"),
        rows,
        numbers=("task", "for"),
        elastic=("note", *(("what",) if has_titles else ())),
        dispensable=("tries", "queue", "node"),
        more=max(reading.running_total - len(reading.running), 0),
    )


def _note(task: TaskRecord) -> str:
    progress = f"{task.progress.fraction:.0%} {task.progress.message or ''}".strip() if task.progress else ""
    flags = ("cancel requested" if task.cancel_requested else "", "overdue" if task.overdue else "", progress)
    return ", ".join(filter(None, flags))


MakeTable = Callable[[Reading, Rates], TopTable]

TABLES: Final[Mapping[str, MakeTable]] = {
    "nodes": nodes_table,
    "queues": queues_table,
    "kinds": kinds_table,
    "tasks": tasks_table,
}
"""The tables by name, in their order on the screen."""


def heights(wanted: Sequence[int], available: int) -> list[int]:
    """Divide the lines of the screen between tables. Each gets what it wants, or an equal part of what is left."""
    given = [0] * len(wanted)
    left = available
    for number, index in enumerate(sorted(range(len(wanted)), key=lambda index: wanted[index])):
        given[index] = min(wanted[index], max(left, 0) // (len(wanted) - number))
        left -= given[index]
    return given


def names_of(tables: Iterable[str]) -> str:
    """The tables with their keys, for the last line of the screen."""
    return " ".join(f"{number} {name}" for number, name in enumerate(("all", *tables), start=1))
