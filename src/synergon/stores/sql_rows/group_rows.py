"""Groups and flows: implements `stores.task_primitives.GroupRows` with the statements of `sql/groups.sql`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from synergon.model.flows import FlowQuery
from synergon.model.lifecycle import State
from synergon.stores import task_primitives as port
from synergon.stores.rows import GroupCount, GroupRow
from synergon.stores.sql_rows.named_statements import SqlRows


class GroupRows(SqlRows, port.GroupRows):
    """Implements `stores.task_primitives.GroupRows`."""

    __slots__ = ()

    async def add(self, name: str, is_flow: bool) -> int:
        group_id: int = await self._sql.value("add_group", name, is_flow)
        return group_id

    async def set_then(self, group_id: int, task_id: int) -> None:
        await self._sql.rows("set_then", group_id, task_id)

    async def end_empty(self, ids: Iterable[int]) -> list[int]:
        return await self._sql.ids("end_empty_groups", sorted(ids))

    async def reopen_flows(self, ids: Iterable[int]) -> None:
        await self._sql.run("reopen_flows", sorted(ids))

    async def live_tasks(self, group_id: int) -> list[int]:
        return await self._sql.ids("live_tasks_of_group", group_id)

    async def final_tasks(self, group_id: int) -> list[int]:
        return await self._sql.ids("unsuccessful_tasks_of_group", group_id)

    async def flows(self, query: FlowQuery) -> list[int]:
        return await self._sql.ids("flows", query.before, query.name, query.state, query.is_open, query.limit + 1)

    async def read(self, ids: Sequence[int]) -> list[GroupRow]:
        return await self._sql.typed(GroupRow, "groups", list(ids))

    async def counts(self, ids: Sequence[int]) -> list[GroupCount]:
        return await self._sql.typed(GroupCount, "group_counts", list(ids))

    async def old(self, state: State, age: int, limit: int) -> list[int]:
        return await self._sql.ids("old_groups", state.value, age, limit)

    async def delete(self, ids: Sequence[int]) -> None:
        await self._sql.run("delete_groups", list(ids))
