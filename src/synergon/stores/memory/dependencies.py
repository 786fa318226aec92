"""The table of dependencies of a memory store, with its indexes. It holds ids only: rows must not refer to rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from synergon.stores.rows import DependencyRow


class Dependencies:
    """All dependencies, by dependent and by needed task."""

    def __init__(self) -> None:
        self._of: Final[dict[int, dict[tuple[int, int], DependencyRow]]] = {}
        """The dependencies of each task, by needed task and position."""
        self._on: Final[dict[int, dict[tuple[int, int], None]]] = {}
        """For each needed task, its dependents and the positions of the dependencies."""
        self._open: Final[dict[int, set[tuple[int, int]]]] = {}
        """For each dependent, the tasks that it still waits for and the positions of the dependencies."""

    def put(self, row: DependencyRow) -> None:
        """Insert a dependency, or replace it."""
        self._of.setdefault(row.task_id, {})[row.needs_id, row.position] = row
        self._on.setdefault(row.needs_id, {})[row.task_id, row.position] = None
        if row.ended_as is None:
            self._open.setdefault(row.task_id, set()).add((row.needs_id, row.position))
            return
        is_open = self._open.get(row.task_id)
        if is_open is not None:
            is_open.discard((row.needs_id, row.position))
            if not is_open:
                del self._open[row.task_id]

    def set_end(self, row: DependencyRow, ended_as: str | None) -> None:
        """Close a dependency, or reopen it."""
        self.put(replace(row, ended_as=ended_as))

    def of(self, ids: Iterable[int]) -> Iterator[DependencyRow]:
        """The dependencies of these tasks, in the order of task ids."""
        for task_id in sorted(ids):
            yield from self._of.get(task_id, {}).values()

    def on(self, ids: Iterable[int]) -> Iterator[DependencyRow]:
        """The dependencies of other tasks on these tasks."""
        for needs_id in ids:
            for task_id, position in self._on.get(needs_id, ()):
                yield self._of[task_id][needs_id, position]

    def has_open(self, task_id: int) -> bool:
        """Whether the task has an open dependency."""
        return task_id in self._open

    def forget(self, task_id: int) -> None:
        """Delete the dependencies of a task."""
        self._open.pop(task_id, None)
        for needs_id, position in self._of.pop(task_id, {}):
            dependents = self._on[needs_id]
            del dependents[task_id, position]
            if not dependents:
                del self._on[needs_id]
