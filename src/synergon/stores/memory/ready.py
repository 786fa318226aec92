"""All ready tasks of a store, in lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from synergon.model.requirements import KIND_DEFAULT
from synergon.stores.memory.ready_groups import CommandLane, Lane
from synergon.stores.memory.row import Row


class ReadyTasks:
    """Finds the lane of a task, and the lanes of a kind.

    Lanes of tasks that say nothing of their demands stay. Others go with their last task: there may be as many
    demands as there are tasks, and nobody should have to look at the lanes of those that are gone.
    """

    def __init__(self) -> None:
        self._lanes: Final[dict[str, dict[str, dict[str, Lane]]]] = {}
        """By kind, queue and requirements."""
        self._commands: Final[dict[str, dict[tuple[str, str, str | None], CommandLane]]] = {}
        """By kind, then by queue, requirements and server."""
        self._demanding: Final[Counter[str]] = Counter()
        """How many ready groups of the kind have requirements of their own."""

    def join(self, row: Row) -> None:
        """A task has become ready."""
        task = row.task
        if task.is_command:
            self._command_lane(row).join(row)
            return
        queues = self._lanes.get(task.kind)
        if queues is None:
            queues = self._lanes[task.kind] = {}
        lanes = queues.get(task.queue)
        if lanes is None:
            lanes = queues[task.queue] = {}
        lane = lanes.get(task.requirements)
        if lane is None:
            lane = lanes[task.requirements] = Lane(task.queue, task.requirements)
            self._demanding[task.kind] += task.requirements != KIND_DEFAULT
        lane.join(row)

    def forget(self, row: Row) -> None:
        """A task is not ready any more; its row will say so from now on."""
        task = row.task
        if task.is_command:
            self._command_lane(row).forget_one()
            return
        lanes = self._lanes[task.kind][task.queue]
        lane = lanes[task.requirements]
        lane.forget_one()
        if not lane.count and task.requirements != KIND_DEFAULT:
            del lanes[task.requirements]
            self._demanding[task.kind] -= 1

    def has_requirements(self, kind: str) -> bool:
        """Whether any ready task of the kind says itself what it demands."""
        return self._demanding[kind] > 0

    def lanes(self, kind: str, queues: frozenset[str] | None = None) -> Iterator[Lane]:
        """The lanes of a kind; with `queues` those of these alone."""
        found = self._lanes.get(kind, {})
        for queue in found if queues is None else found.keys() & queues:
            yield from found[queue].values()

    def command_lanes(self, kind: str) -> Iterable[CommandLane]:
        """The lanes of commands."""
        return self._commands.get(kind, {}).values()

    def all_lanes(self) -> list[Lane]:
        """Every lane of every kind."""
        plain = chain.from_iterable(self.lanes(kind) for kind in self._lanes)
        return [*plain, *chain.from_iterable(lanes.values() for lanes in self._commands.values())]

    def _command_lane(self, row: Row) -> Lane:
        task = row.task
        lanes = self._commands.setdefault(task.kind, {})
        name = (task.queue, task.requirements, task.target)
        lane = lanes.get(name)
        if lane is None:
            lane = lanes[name] = CommandLane(*name)
        return lane
