"""Groups of tasks, in the memory store: the primitives of `stores.session.GroupRows` over its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import FINAL
from synergon.model.record import to_datetime
from synergon.stores.memory.entries import Group
from synergon.stores.rows import ChangedTask, GroupCount, GroupRow

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class GroupRows:
    """Implements `stores.session.GroupRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._tables: Final = session.tables

    async def add(self, name: str) -> int:
        """Insert a group. Returns its id."""
        tables = self._tables
        tables.last_group_id += 1
        tables.groups[tables.last_group_id] = Group(name, created_at=self._session.now)
        return tables.last_group_id

    async def set_then(self, group_id: int, task_id: int) -> None:
        """Record which task follows the group."""
        self._tables.groups[group_id].then_id = task_id

    async def open(self, ids: Iterable[int]) -> set[int]:
        """The groups of this list that have not ended."""
        return {group_id for group_id, group in self._found(ids) if group.ended_at is None}

    def _found(self, ids: Iterable[int]) -> list[tuple[int, Group]]:
        groups = self._tables.groups
        return [(group_id, groups[group_id]) for group_id in ids if group_id in groups]

    async def end_empty(self, ids: Iterable[int]) -> list[int]:
        """End the groups of this list that have no live task."""
        ended = []
        for group_id, group in self._found(ids):
            if group.live == 0 and group.ended_at is None:
                group.ended_at = self._session.now
                self._tables.note_if_empty(group_id)
                ended.append(group_id)
        return ended

    async def release_followers(self, ids: Sequence[int]) -> list[ChangedTask]:
        """Release the tasks that waited for the end of these groups."""
        followers = [row for _, group in self._found(ids) for row in group.followers.values()]
        for row in followers:
            self._tables.release(row, self._session.now)
        return [ChangedTask(row.id, row.task.kind, row.state, row.limit_key, row.task.group_id) for row in followers]

    async def live_tasks(self, group_id: int) -> list[int]:
        """The live tasks of a group."""
        members = (row for _, group in self._found([group_id]) for row in group.members.values())
        return [row.id for row in members if row.state not in FINAL]

    async def read(self, ids: Sequence[int]) -> list[GroupRow]:
        """The rows of these groups."""
        return [
            GroupRow(
                group_id,
                group.name,
                to_datetime(group.created_at),
                None if group.ended_at is None else to_datetime(group.ended_at),
                group.then_id,
            )
            for group_id, group in self._found(ids)
        ]

    async def counts(self, ids: Sequence[int]) -> list[GroupCount]:
        """How many tasks of these groups, live or final, are in each state."""
        return [
            GroupCount(group_id, state, count)
            for group_id, group in self._found(ids)
            for state, count in Counter(row.state for row in group.members.values()).items()
        ]

    async def prune(self, age: int, limit: int) -> None:
        """Delete old groups that have no task left."""
        tables, ended_before = self._tables, self._session.now - age
        for group_id in list(islice(tables.empty_groups, limit)):
            if not tables.is_empty(group_id):  # a task has joined the group after its end
                del tables.empty_groups[group_id]
            elif (tables.groups[group_id].ended_at or 0) < ended_before:
                del tables.empty_groups[group_id], tables.groups[group_id]
