"""Groups of tasks in the PostgreSQL store: implements `stores.task_primitives.GroupRows` with the statements of
`sql/groups.sql`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from synergon.model.flows import FlowQuery
from synergon.model.lifecycle import State
from synergon.stores import task_primitives as port
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import GroupCount, GroupRow


class GroupRows(port.GroupRows):
    """Implements `stores.task_primitives.GroupRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def add(self, name: str, is_flow: bool) -> int:
        group_id: int = await self._transaction.value("add_group", name, is_flow)
        return group_id

    async def set_then(self, group_id: int, task_id: int) -> None:
        await self._transaction.rows("set_then", group_id, task_id)

    async def end_empty(self, ids: Iterable[int]) -> list[int]:
        return await self._transaction.ids("end_empty_groups", sorted(ids))

    async def reopen_flows(self, ids: Iterable[int]) -> None:
        await self._transaction.run("reopen_flows", sorted(ids))

    async def live_tasks(self, group_id: int) -> list[int]:
        return await self._transaction.ids("live_tasks_of_group", group_id)

    async def final_tasks(self, group_id: int) -> list[int]:
        """The final tasks of a group or a flow that did not succeed."""
        return await self._transaction.ids("unsuccessful_tasks_of_group", group_id)

    async def flows(self, query: FlowQuery) -> list[int]:
        """The flows that match, newest first, one more than the limit if there are more."""
        return await self._transaction.ids(
            "flows", query.before, query.name, query.state, query.is_open, query.limit + 1
        )

    async def read(self, ids: Sequence[int]) -> list[GroupRow]:
        return await self._transaction.typed(GroupRow, "groups", ids)

    async def counts(self, ids: Sequence[int]) -> list[GroupCount]:
        return await self._transaction.typed(GroupCount, "group_counts", ids)

    async def old(self, state: State, age: int, limit: int) -> list[int]:
        return await self._transaction.ids("old_groups", state, age, limit)

    async def delete(self, ids: Sequence[int]) -> None:
        await self._transaction.run("delete_groups", list(ids))
