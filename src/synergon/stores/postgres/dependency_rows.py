"""Dependencies in the PostgreSQL store: locks needed tasks, except in a caller's transaction, and also finds tasks that
end or are retried during the search."""

from __future__ import annotations

from collections.abc import Collection

from synergon.model.lifecycle import State
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import NeededState
from synergon.stores.sql_rows.dependency_rows import DependencyRows as SqlDependencyRows


class DependencyRows(SqlDependencyRows):
    """Adapts `stores.sql_rows.dependency_rows` to the PostgreSQL store."""

    __slots__ = ()
    _sql: Transaction

    async def lock_needed(self, ids: Collection[int]) -> dict[int, State]:
        live = "needed_live_state" if self._sql.is_callers else "lock_needed"
        found: dict[int, State] = {}
        for name in (live, "needed_final_state", live):
            missing = sorted(set(ids) - found.keys())
            if missing:
                found |= {task.id: task.state for task in await self._sql.typed(NeededState, name, missing)}
        return found
