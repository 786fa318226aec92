"""Groups of tasks in the memory store: implements `stores.task_primitives.GroupRows` over the store's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from synergon.model.flows import FlowQuery
from synergon.model.lifecycle import FINAL, State
from synergon.model.record import to_datetime
from synergon.stores import task_primitives as port
from synergon.stores.memory.entries import Group
from synergon.stores.rows import GroupCount, GroupRow

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class GroupRows(port.GroupRows):
    """Implements `stores.task_primitives.GroupRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._tables: Final = session.tables

    async def add(self, name: str, is_flow: bool) -> int:
        tables = self._tables
        tables.last_group_id += 1
        tables.groups[tables.last_group_id] = Group(name, created_at=self._session.now, is_flow=is_flow)
        return tables.last_group_id

    async def set_then(self, group_id: int, task_id: int) -> None:
        self._tables.groups[group_id].then_id = task_id

    def _found(self, ids: Iterable[int]) -> list[tuple[int, Group]]:
        groups = self._tables.groups
        return [(group_id, groups[group_id]) for group_id in ids if group_id in groups]

    async def end_empty(self, ids: Iterable[int]) -> list[int]:
        ended = []
        for group_id, group in self._found(ids):
            if group.live == 0 and group.ended_at is None:
                group.ended_at = self._session.now
                states = {row.state for row in group.members.values()}
                group.state = next(
                    (state for state in (State.FAILED, State.CANCELLED) if state in states), State.SUCCEEDED
                )
                ended.append(group_id)
        return ended

    async def reopen_flows(self, ids: Iterable[int]) -> None:
        for _, group in self._found(ids):
            if group.is_flow:
                group.ended_at = group.state = None

    async def live_tasks(self, group_id: int) -> list[int]:
        members = (row for _, group in self._found([group_id]) for row in group.members.values())
        return [row.id for row in members if row.state not in FINAL]

    async def final_tasks(self, group_id: int) -> list[int]:
        """The failed and cancelled tasks of a group or a flow."""
        members = (row for _, group in self._found([group_id]) for row in group.members.values())
        return [row.id for row in members if row.state in (State.FAILED, State.CANCELLED)]

    async def flows(self, query: FlowQuery) -> list[int]:
        """The matching flows, newest first, at most `query.limit` + 1: the additional one shows that there are more."""
        found = (
            group_id
            for group_id, group in reversed(self._tables.groups.items())
            if group.is_flow
            and (query.before is None or group_id < query.before)
            and query.name in (None, group.name)
            and query.state in (None, group.state)
            and query.is_open in (None, group.ended_at is None)
        )
        return list(islice(found, query.limit + 1))

    async def read(self, ids: Sequence[int]) -> list[GroupRow]:
        return [
            GroupRow(
                group_id,
                group.name,
                to_datetime(group.created_at),
                None if group.ended_at is None else to_datetime(group.ended_at),
                group.then_id,
                group.is_flow,
                group.state,
            )
            for group_id, group in self._found(ids)
        ]

    async def counts(self, ids: Sequence[int]) -> list[GroupCount]:
        return [
            GroupCount(group_id, state, count)
            for group_id, group in self._found(ids)
            for state, count in Counter(row.state for row in group.members.values()).items()
        ]

    async def old(self, state: State, age: int, limit: int) -> list[int]:
        ended_before = self._session.now - age
        ended = (
            (group.ended_at, group_id)
            for group_id, group in self._tables.groups.items()
            if group.state is state and (group.ended_at or 0) < ended_before and self._is_unused(group)
        )
        return [group_id for _, group_id in islice(ended, limit)]

    def _is_unused(self, group: Group) -> bool:
        """Whether no live task belongs to the group, follows it, or depends on one of its tasks."""
        rows = self._tables.rows
        then = rows.get(group.then_id or 0)
        dependents = (row.task_id for row in self._tables.dependencies.on(group.members))
        return (
            group.live == 0
            and (then is None or then.state in FINAL)
            and all(rows[task_id].state in FINAL for task_id in dependents)
        )

    async def delete(self, ids: Sequence[int]) -> None:
        for group_id in ids:
            del self._tables.groups[group_id]
