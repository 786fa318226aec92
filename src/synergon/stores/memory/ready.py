"""All ready tasks of a memory store, in ready groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from synergon.model.requirements import KIND_DEFAULT
from synergon.stores.memory.ready_groups import ReadyCommands, ReadyGroup
from synergon.stores.memory.row import Row


class ReadyTasks:
    """Finds the ready group of a task, and the ready groups of a kind.

    A ready group of tasks without requirements of their own is retained when it is empty. Any other ready group is
    deleted with its last task, because there may be as many different requirements as tasks.
    """

    def __init__(self) -> None:
        self._ready_groups: Final[dict[str, dict[str, dict[str, ReadyGroup]]]] = {}
        """The ready groups by kind, queue and requirements."""
        self._commands: Final[dict[str, dict[tuple[str, str, str | None], ReadyCommands]]] = {}
        """The ready groups of commands by kind, then by queue, requirements and server."""
        self._with_requirements: Final[Counter[str]] = Counter()
        """For each kind, how many ready groups have requirements of their own."""

    def join(self, row: Row) -> None:
        """Add a task that has become ready."""
        task = row.task
        if task.is_command:
            self._ready_commands(row).join(row)
            return
        queues = self._ready_groups.get(task.kind)
        if queues is None:
            queues = self._ready_groups[task.kind] = {}
        ready_groups = queues.get(task.queue)
        if ready_groups is None:
            ready_groups = queues[task.queue] = {}
        ready_group = ready_groups.get(task.requirements)
        if ready_group is None:
            ready_group = ready_groups[task.requirements] = ReadyGroup(task.queue, task.requirements)
            self._with_requirements[task.kind] += task.requirements != KIND_DEFAULT
        ready_group.join(row)

    def forget(self, row: Row) -> None:
        """Note that a ready task changes its state. The caller changes the row."""
        task = row.task
        if task.is_command:
            self._ready_commands(row).forget_one()
            return
        ready_groups = self._ready_groups[task.kind][task.queue]
        ready_group = ready_groups[task.requirements]
        ready_group.forget_one()
        if not ready_group.count and task.requirements != KIND_DEFAULT:
            del ready_groups[task.requirements]
            self._with_requirements[task.kind] -= 1

    def has_requirements(self, kind: str) -> bool:
        """Whether a ready task of the kind has requirements of its own."""
        return self._with_requirements[kind] > 0

    def ready_group(self, kind: str, queue: str, requirements: str) -> ReadyGroup | None:
        """The ready group of this kind, queue and requirements. None if it was deleted with its last task."""
        return self._ready_groups[kind][queue].get(requirements)

    def ready_groups(self, kind: str, queues: frozenset[str] | None = None) -> Iterator[ReadyGroup]:
        """The ready groups of a kind, in all queues or in `queues`."""
        found = self._ready_groups.get(kind, {})
        for queue in found if queues is None else found.keys() & queues:
            yield from found[queue].values()

    def ready_commands(self, kind: str) -> Iterable[ReadyCommands]:
        """The ready groups of a kind of commands."""
        return self._commands.get(kind, {}).values()

    def by_kind(self) -> Iterator[tuple[str, ReadyGroup]]:
        """All ready groups, each with its kind."""
        for kind in self._ready_groups:
            yield from ((kind, ready_group) for ready_group in self.ready_groups(kind))
        for kind, commands in self._commands.items():
            yield from ((kind, ready_group) for ready_group in commands.values())

    def all_ready_groups(self) -> list[ReadyGroup]:
        """The ready groups of all kinds."""
        plain = chain.from_iterable(self.ready_groups(kind) for kind in self._ready_groups)
        return [*plain, *chain.from_iterable(ready_groups.values() for ready_groups in self._commands.values())]

    def _ready_commands(self, row: Row) -> ReadyGroup:
        task = row.task
        ready_groups = self._commands.setdefault(task.kind, {})
        name = (task.queue, task.requirements, task.target)
        ready_group = ready_groups.get(name)
        if ready_group is None:
            ready_group = ready_groups[name] = ReadyCommands(*name)
        return ready_group
