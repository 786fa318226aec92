"""Dependencies in the PostgreSQL store: implements `stores.task_primitives.DependencyRows` with the statements of
`sql/dependencies.sql`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from synergon.model.lifecycle import State
from synergon.stores import task_primitives as port
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ChangedTask, DependencyRow, NeededState, NeededTask


class DependencyRows(port.DependencyRows):
    """Implements `stores.task_primitives.DependencyRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def add(self, rows: Sequence[DependencyRow]) -> None:
        if rows:
            await self._transaction.rows(  # a caller's driver has rows only
                "add_dependencies",
                [row.task_id for row in rows],
                [row.needs_id for row in rows],
                [row.position for row in rows],
                [row.item for row in rows],
                [row.if_fails for row in rows],
                [row.ended_as for row in rows],
            )

    async def lock_needed(self, ids: Collection[int]) -> dict[int, State]:
        live = "needed_live_state" if self._transaction.is_callers else "lock_needed"
        found: dict[int, State] = {}
        for name in (live, "needed_final_state", live):
            missing = sorted(set(ids) - found.keys())
            if missing:
                found |= {task.id: task.state for task in await self._transaction.typed(NeededState, name, missing)}
        return found

    async def mark_needed(self, ids: Collection[int]) -> None:
        if ids:
            await self._transaction.run("mark_needed", sorted(ids))

    async def of(self, ids: Collection[int]) -> list[DependencyRow]:
        return await self._transaction.typed(DependencyRow, "dependencies_of", list(ids))

    async def on(self, ids: Collection[int]) -> list[DependencyRow]:
        return await self._transaction.typed(DependencyRow, "dependents", list(ids))

    async def open_on(self, ids: Collection[int]) -> list[DependencyRow]:
        return await self._transaction.typed(DependencyRow, "open_dependents", list(ids))

    async def lock_dependents(self, ids: Collection[int], others: Collection[int]) -> list[int]:
        return await self._transaction.ids("lock_dependents", list(ids), list(others))

    async def doomed(self, ids: Collection[int]) -> list[int]:
        return await self._transaction.ids("doomed", list(ids))

    async def cancelled_with(self, ids: Collection[int]) -> list[int]:
        return await self._transaction.ids("cancelled_with", list(ids))

    async def close(self, ended: Mapping[int, str]) -> None:
        for how in set(ended.values()):
            ids = [task_id for task_id, ended_as in ended.items() if ended_as == how]
            await self._transaction.run("close_dependencies", ids, str(how))

    async def reopen(self, rows: Sequence[DependencyRow]) -> None:
        await self._transaction.run(
            "reopen_dependencies", [row.task_id for row in rows], [row.needs_id for row in rows]
        )

    async def release(self, ids: Sequence[int]) -> list[ChangedTask]:
        return await self._transaction.typed(ChangedTask, "release_dependents", list(ids))

    async def make_dependent(self, ids: Collection[int]) -> list[ChangedTask]:
        return await self._transaction.typed(ChangedTask, "make_dependent", list(ids))

    async def defer(self, ids: Collection[int]) -> None:
        await self._transaction.rows("defer_dependents", list(ids))

    async def unsettled(self, limit: int) -> list[int]:
        return await self._transaction.ids("unsettled", limit)

    async def read(self, ids: Collection[int], most_bytes: int) -> list[NeededTask]:
        return await self._transaction.typed(NeededTask, "needed_tasks", list(ids), most_bytes)

    async def needed_by(self, task_id: int) -> int | None:
        found: int | None = await self._transaction.value("needed_by", task_id)
        return found

    async def delete_of(self, ids: Collection[int]) -> None:
        await self._transaction.rows("delete_dependencies", list(ids))
