"""Counts of tasks in the SQLite store: finds the oldest ready tasks with one index step for each ready group."""

from __future__ import annotations

from synergon.stores.rows import OldestReady
from synergon.stores.sql_rows.count_rows import CountRows as SqlCountRows
from synergon.stores.sqlite.transaction import Statements


class CountRows(SqlCountRows):
    """Adapts `stores.sql_rows.count_rows` to the SQLite store."""

    __slots__ = ()
    _sql: Statements

    async def oldest_ready(self) -> list[OldestReady]:
        transaction = self._sql.transaction
        oldest: dict[tuple[str, str], int] = {}
        for (kind,) in transaction.rows("ready_kinds"):
            for queue, requirements in transaction.rows("groups_of_kind", kind=kind):
                (due_at,) = transaction.row("oldest_of_group", kind=kind, queue=queue, requirements=requirements)
                if due_at is not None:
                    oldest[queue, kind] = min(due_at, oldest.get((queue, kind), due_at))
        return [OldestReady(queue, kind, due_at) for (queue, kind), due_at in oldest.items()]
