"""Groups of tasks in the SQLite store: implements `stores.task_primitives.GroupRows` with the statements of
`sql/groups.sql`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from synergon.model.flows import FlowQuery
from synergon.model.lifecycle import State
from synergon.stores import task_primitives as port
from synergon.stores.rows import GroupCount, GroupRow
from synergon.stores.sqlite.transaction import Transaction, as_json


class GroupRows(port.GroupRows):
    """Implements `stores.task_primitives.GroupRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def add(self, name: str, is_flow: bool) -> int:
        group_id = self._transaction.next_id()
        self._transaction.run("add_group", group_id, name, self._transaction.now, is_flow)
        return group_id

    async def set_then(self, group_id: int, task_id: int) -> None:
        self._transaction.run("set_then", task_id, group_id)

    async def end_empty(self, ids: Iterable[int]) -> list[int]:
        return self._transaction.ids("end_empty_groups", self._transaction.now, as_json(ids))

    async def reopen_flows(self, ids: Iterable[int]) -> None:
        self._transaction.run("reopen_flows", as_json(ids))

    async def live_tasks(self, group_id: int) -> list[int]:
        return self._transaction.ids("live_tasks_of_group", group_id)

    async def final_tasks(self, group_id: int) -> list[int]:
        """The final tasks of a group or a flow that did not succeed."""
        return self._transaction.ids("unsuccessful_tasks_of_group", group_id)

    async def flows(self, query: FlowQuery) -> list[int]:
        """The flows that match, newest first, one more than the limit if there are more."""
        return self._transaction.ids(
            "flows",
            before=query.before,
            name=query.name,
            state=query.state,
            is_open=query.is_open,
            limit=query.limit + 1,
        )

    async def read(self, ids: Sequence[int]) -> list[GroupRow]:
        return self._transaction.typed(GroupRow, "groups", as_json(ids))

    async def counts(self, ids: Sequence[int]) -> list[GroupCount]:
        return self._transaction.typed(GroupCount, "group_counts", ids=as_json(ids))

    async def old(self, state: State, age: int, limit: int) -> list[int]:
        return self._transaction.ids("old_groups", state.value, self._transaction.now - age, limit)

    async def delete(self, ids: Sequence[int]) -> None:
        self._transaction.run("delete_groups", as_json(ids))
