"""Queries of the PostgreSQL store. They read rows as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from synergon.model.nodes import NodeRecord
from synergon.model.positions import Position
from synergon.model.record import to_datetime
from synergon.model.task_records import TaskQuery, TaskRecord
from synergon.stores.listing import Dialect, Found, position_of
from synergon.stores.postgres.session import Session
from synergon.stores.rows import NodeCount
from synergon.stores.sql_rows import task_listing
from synergon.stores.typed_rows import read_rows
from synergon.stores.unreadable import UnreadableRows

DIALECT: Final = Dialect(
    among="{column} = ANY ({})", values=list, text="{column}", moment=to_datetime, tagged="tags @> ARRAY[{}]"
)


class ListingReader(task_listing.Reader):
    """Implements `stores.sql_rows.task_listing.Reader` for a transaction of PostgreSQL."""

    dialect: Dialect = DIALECT

    def __init__(self, connection: Any, sql: Mapping[str, str], unreadable: UnreadableRows) -> None:
        self._connection = connection
        self.sql = sql
        self._unreadable = unreadable

    async def tasks(self, query: TaskQuery, statement: str, values: Sequence[Any]) -> list[Found]:
        """The tasks that a statement finds, with their positions. The last column may be `number`, the position in the
        order of ends."""
        rows = await self._connection.fetch(statement, *values)
        names = tuple(rows[0].keys()) if rows else ()
        if names[-1:] != ("number",):
            tasks = read_rows(TaskRecord, names, rows, self._unreadable) if rows else []
            return [Found(position_of(query, task), task) for task in tasks]
        numbers = {row["id"]: row["number"] for row in rows}
        tasks = read_rows(TaskRecord, names[:-1], [tuple(row)[:-1] for row in rows], self._unreadable)
        return [Found(Position(numbers[task.id], task.id), task) for task in tasks]

    async def positions(self, statement: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """The rows of a statement, each with a key and an id."""
        rows: list[Any] = await self._connection.fetch(statement, *values)
        return rows


async def nodes(session: Session) -> list[NodeRecord]:
    """All registered nodes that can be read."""
    return await session.typed(NodeRecord, "nodes")


async def running_by_node(session: Session) -> dict[str, int]:
    """The number of running tasks of each node."""
    return {row.node_id: row.count for row in await session.typed(NodeCount, "running_by_node")}
