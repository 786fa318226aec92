"""Queries of the SQLite store. They read rows as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from synergon.model.task_records import TaskPage, TaskQuery, TaskRecord
from synergon.stores.listing import Dialect, Found, position_of
from synergon.stores.rows import NodeCount
from synergon.stores.session import drive
from synergon.stores.sql_rows import task_listing
from synergon.stores.sqlite.transaction import SQL, Transaction, as_json, numbered

DIALECT: Final = Dialect(
    among="{column} IN (SELECT value FROM json_each({}))",
    values=as_json,
    text="CAST({column} AS TEXT)",
    moment=lambda moment: moment,
    # Tags that are not JSON would make the statement fail.
    tagged="tags IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(iif(json_valid(tags), tags, '[]')) WHERE value = {})",
)


class _Reader(task_listing.Reader):
    """Implements `stores.sql_rows.task_listing.Reader` for a transaction of SQLite."""

    dialect: Dialect = DIALECT
    sql: Mapping[str, str] = SQL

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def tasks(self, query: TaskQuery, statement: str, values: Sequence[Any]) -> list[Found]:
        found = self._transaction.typed_select(TaskRecord, statement, numbered(values))
        return [Found(position_of(query, task), task) for task in found]

    async def positions(self, statement: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        return self._transaction.select(statement, numbered(values))


def list_tasks(transaction: Transaction, query: TaskQuery) -> TaskPage:
    """One page of the matching tasks."""
    return drive(task_listing.list_tasks(_Reader(transaction), query))


def running_by_node(transaction: Transaction) -> dict[str, int]:
    """The number of running tasks of each node."""
    return {row.node_id: row.count for row in transaction.typed(NodeCount, "running_by_node")}
