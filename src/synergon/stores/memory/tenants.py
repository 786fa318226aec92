"""The tenants of a memory store, and the tags by which they take turns."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from synergon.model.lifecycle import FINAL, State
from synergon.stores.memory.row import Row
from synergon.stores.memory.task_index import SLACK, TaskIndex
from synergon.stores.rows import TenantName
from synergon.stores.rules.claim_plan import ReadyClass


class _LiveTasks:
    """The live tasks of a tenant that have a tag, in the order of their tags. A new task has the largest tag. An entry
    is valid only while the row has the tag of the entry."""

    __slots__ = ("_entries", "_tenant", "count")

    def __init__(self, tenant: TenantName) -> None:
        self._tenant = tenant
        self._entries: list[tuple[int, Row]] = []
        self.count = 0
        """The number of live tasks."""

    def join(self, row: Row) -> None:
        """Add a task that has got a tag."""
        if len(self._entries) > 2 * self.count + SLACK:
            self._entries = [entry for entry in self._entries if self._counts(*entry)]
        self.count += 1
        self._entries.append((row.fair_tag, row))

    def largest(self) -> int | None:
        """The largest tag. None if no task is left."""
        entries = self._entries
        while entries and not self._counts(*entries[-1]):
            entries.pop()
        return entries[-1][0] if entries else None

    def _counts(self, tag: int, row: Row) -> bool:
        return row.fair_tag == tag and row.state not in FINAL and _tenant(row) == self._tenant


class _ReadyTasks:
    """The tagged ready tasks of one `ReadyClass`, indexed by tag and by id."""

    __slots__ = ("by_age", "by_tag")

    def __init__(self, name: ReadyClass) -> None:
        self.by_tag: Final = TaskIndex(lambda row: row.fair_tag if _is_of_class(row, name) else None)
        self.by_age: Final = TaskIndex(lambda row: row.id if _is_of_class(row, name) else None)

    def join(self, row: Row) -> None:
        """Add a task that has become ready."""
        self.by_tag.add(row, row.fair_tag)
        self.by_age.add(row, row.id)

    def forget_one(self) -> bool:
        """Note that one entry becomes outdated. Does not rebuild the indexes: the next `join` does, and they are
        deleted with the last task. Returns True if no task is left."""
        self.by_tag.count -= 1
        self.by_age.count -= 1
        return self.by_age.count == 0


class Tenants:
    """Finds the smallest tag of the ready tasks of a kind and priority, the largest tag of those that have started, and
    the largest tag of a tenant's live tasks.

    Contains tasks with a tag only. All indexes are derived from the rows.
    """

    def __init__(self) -> None:
        self._live: Final[dict[TenantName, _LiveTasks]] = {}
        self._ready: Final[dict[tuple[str, int], dict[tuple[str, str], _ReadyTasks]]] = {}
        """The ready tasks of each kind and priority, by queue and requirements."""
        self._started: Final[dict[tuple[str, int], TaskIndex]] = {}
        """The live tasks of each kind and priority that are not ready, in descending order of their tags."""

    def smallest_ready(self, kind: str, priority: int, paused: Collection[str]) -> int | None:
        """The smallest tag of the ready tasks of a kind and priority, except those of paused queues. None if there is
        no such task."""
        return self._smallest(kind, priority, lambda queue: queue not in paused)

    def smallest_paused(self, kind: str, priority: int, paused: Collection[str]) -> int | None:
        """The smallest tag of the ready tasks of a kind and priority in paused queues. None if there is no such
        task."""
        return self._smallest(kind, priority, lambda queue: queue in paused)

    def _smallest(self, kind: str, priority: int, counts: Callable[[str], bool]) -> int | None:
        classes = self._ready.get((kind, priority), {})
        tags = [ready.by_tag.next_moment() for (queue, _), ready in classes.items() if counts(queue)]
        return min((tag for tag in tags if tag is not None), default=None)

    def largest_started(self, kind: str, priority: int) -> int | None:
        """The largest tag of the live tasks of a kind and priority that are not ready. None if there is no such
        task."""
        started = self._started.get((kind, priority))
        row = None if started is None else started.first()
        return None if row is None else row.fair_tag

    def largest_live(self, tenant: TenantName) -> int | None:
        """The largest tag of the tenant's live tasks. None if none has a tag."""
        live = self._live.get(tenant)
        return None if live is None else live.largest()

    def oldest(self, ready_class: ReadyClass, limit: int) -> list[int]:
        """The smallest ids of the tagged ready tasks of `ready_class`, ascending, at most `limit`."""
        kind, queue, requirements, priority = ready_class
        ready = self._ready.get((kind, priority), {}).get((queue, requirements))
        return [] if ready is None else [row.id for row in ready.by_age.firsts(limit)]

    def join(self, row: Row) -> None:
        """Add a live task that has got a tag."""
        name = _tenant(row)
        live = self._live.get(name)
        if live is None:
            live = self._live[name] = _LiveTasks(name)
        live.join(row)

    def leave(self, row: Row) -> None:
        """Note that a task ends, or loses its tag. The caller changes the row."""
        name = _tenant(row)
        live = self._live[name]
        live.count -= 1
        if not live.count:
            del self._live[name]

    def join_ready(self, row: Row) -> None:
        """Add a task with a tag that has become ready."""
        task = row.task
        classes = self._ready.setdefault((task.kind, row.priority), {})
        ready = classes.get((task.queue, task.requirements))
        if ready is None:
            ready = classes[task.queue, task.requirements] = _ReadyTasks(_class(row))
        ready.join(row)

    def leave_ready(self, row: Row) -> None:
        """Note that a ready task with a tag changes its state. The caller changes the row."""
        task = row.task
        classes = self._ready[task.kind, row.priority]
        if classes[task.queue, task.requirements].forget_one():
            del classes[task.queue, task.requirements]
            if not classes:
                del self._ready[task.kind, row.priority]

    def join_started(self, row: Row) -> None:
        """Add a live task that has a tag and is no longer ready."""
        name = row.task.kind, row.priority
        started = self._started.get(name)
        if started is None:
            started = self._started[name] = TaskIndex(lambda row: -row.fair_tag if _has_started(row, name) else None)
        started.add(row, -row.fair_tag)

    def leave_started(self, row: Row) -> None:
        """Note that a live task with a tag that is not ready changes its state or tag. The caller changes the row."""
        name = row.task.kind, row.priority
        started = self._started[name]
        started.count -= 1
        if not started.count:
            del self._started[name]


def _tenant(row: Row) -> TenantName:
    return row.task.kind, row.priority, row.task.fair_key or ""


def _class(row: Row) -> ReadyClass:
    return row.task.kind, row.task.queue, row.task.requirements, row.priority


def _has_started(row: Row, name: tuple[str, int]) -> bool:
    return row.fair_tag > 0 and row.state is not State.READY and (row.task.kind, row.priority) == name


def _is_of_class(row: Row, name: ReadyClass) -> bool:
    return row.state is State.READY and row.fair_tag > 0 and _class(row) == name
