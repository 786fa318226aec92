"""Groups of tasks in the PostgreSQL store: implements `stores.session.GroupRows` with the statements of
`sql/groups.sql`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ChangedTask, GroupCount, GroupRow


class GroupRows:
    """Implements `stores.session.GroupRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def add(self, name: str) -> int:
        """Insert a group. Returns its id."""
        group_id: int = await self._transaction.value("add_group", name)
        return group_id

    async def set_then(self, group_id: int, task_id: int) -> None:
        """Store which task follows the group."""
        await self._transaction.run("set_then", group_id, task_id)

    async def open(self, ids: Iterable[int]) -> set[int]:
        """The groups of this list that have not ended."""
        return set(await self._transaction.ids("open_groups", sorted(ids)))

    async def end_empty(self, ids: Iterable[int]) -> list[int]:
        """End the groups of this list that have no live task. Returns those that had not ended before."""
        return await self._transaction.ids("end_empty_groups", sorted(ids))

    async def release_followers(self, ids: Sequence[int]) -> list[ChangedTask]:
        """Move the tasks that waited for these groups to `scheduled`, `waiting` or `ready`."""
        return await self._transaction.typed(ChangedTask, "release_followers", ids)

    async def live_tasks(self, group_id: int) -> list[int]:
        """The live tasks of a group."""
        return await self._transaction.ids("live_tasks_of_group", group_id)

    async def read(self, ids: Sequence[int]) -> list[GroupRow]:
        """The rows of these groups."""
        return await self._transaction.typed(GroupRow, "groups", ids)

    async def counts(self, ids: Sequence[int]) -> list[GroupCount]:
        """How many tasks of these groups, live or final, are in each state."""
        return await self._transaction.typed(GroupCount, "group_counts", ids)

    async def prune(self, age: int, limit: int) -> None:
        """Delete at most `limit` groups that ended longer than `age` ago and have no task, live or final."""
        await self._transaction.run("prune_groups", age, limit)
