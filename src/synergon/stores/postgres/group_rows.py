"""Groups in the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from synergon.stores.postgres.transaction import Transaction
from synergon.stores.session import ChangedTask


class GroupRows:
    """`stores.session.GroupRows`."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def add(self, name: str) -> int:
        """Insert a group; its id."""
        group_id: int = await self._transaction.value("add_group", name)
        return group_id

    async def set_then(self, group_id: int, task_id: int) -> None:
        """Remember the task that follows the group."""
        await self._transaction.run("set_then", group_id, task_id)

    async def open(self, ids: Iterable[int]) -> set[int]:
        """Those that have not ended."""
        return set(await self._transaction.ids("open_groups", sorted(ids)))

    async def end_empty(self, ids: Iterable[int]) -> list[int]:
        """End those that have no live task."""
        return await self._transaction.ids("end_empty_groups", sorted(ids))

    async def release_followers(self, ids: Sequence[int]) -> list[ChangedTask]:
        """Release the tasks that waited for these groups."""
        return await self._transaction.typed(ChangedTask, "release_followers", ids)

    async def live_tasks(self, group_id: int) -> list[int]:
        """The live tasks of a group."""
        return await self._transaction.ids("live_tasks_of_group", group_id)

    async def prune(self, age: int, limit: int) -> None:
        """Delete old groups that have no task left."""
        await self._transaction.run("prune_groups", age, limit)
