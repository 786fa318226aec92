"""Groups of tasks in the SQLite store: implements `stores.session.GroupRows` with the statements of
`sql/groups.sql`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from synergon.stores.rows import ChangedTask, GroupCount, GroupRow
from synergon.stores.sqlite.transaction import Transaction, as_json


class GroupRows:
    """Implements `stores.session.GroupRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def add(self, name: str) -> int:
        """Insert a group. Returns its id."""
        group_id = self._transaction.next_id()
        self._transaction.run("add_group", group_id, name, self._transaction.now)
        return group_id

    async def set_then(self, group_id: int, task_id: int) -> None:
        """Store which task follows the group."""
        self._transaction.run("set_then", task_id, group_id)

    async def open(self, ids: Iterable[int]) -> set[int]:
        """The groups of this list that have not ended."""
        return set(self._transaction.ids("open_groups", as_json(ids)))

    async def end_empty(self, ids: Iterable[int]) -> list[int]:
        """End the groups of this list that have no live task. Returns those that had not ended before."""
        return self._transaction.ids("end_empty_groups", self._transaction.now, as_json(ids))

    async def release_followers(self, ids: Sequence[int]) -> list[ChangedTask]:
        """Move the tasks that waited for these groups to `scheduled`, `waiting` or `ready`."""
        return self._transaction.typed(ChangedTask, "release_followers", self._transaction.now, as_json(ids))

    async def live_tasks(self, group_id: int) -> list[int]:
        """The live tasks of a group."""
        return self._transaction.ids("live_tasks_of_group", group_id)

    async def read(self, ids: Sequence[int]) -> list[GroupRow]:
        """The rows of these groups."""
        return self._transaction.typed(GroupRow, "groups", as_json(ids))

    async def counts(self, ids: Sequence[int]) -> list[GroupCount]:
        """How many tasks of these groups, live or final, are in each state."""
        return self._transaction.typed(GroupCount, "group_counts", ids=as_json(ids))

    async def prune(self, age: int, limit: int) -> None:
        """Delete at most `limit` groups that ended longer than `age` ago and have no task, live or final."""
        self._transaction.run("prune_groups", self._transaction.now - age, limit)
