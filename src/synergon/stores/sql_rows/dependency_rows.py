"""Dependencies: implements `stores.task_primitives.DependencyRows` with the statements of `sql/dependencies.sql`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import astuple

from synergon.model.lifecycle import State
from synergon.stores import task_primitives as port
from synergon.stores.rows import ChangedTask, DependencyRow, NeededState, NeededTask
from synergon.stores.sql_rows.named_statements import SqlRows


class DependencyRows(SqlRows, port.DependencyRows):
    """Implements `stores.task_primitives.DependencyRows`."""

    __slots__ = ()

    async def add(self, rows: Sequence[DependencyRow]) -> None:
        await self._sql.run_all("add_dependencies", [astuple(row) for row in rows])

    async def lock_needed(self, ids: Collection[int]) -> dict[int, State]:
        return {task.id: task.state for task in await self._sql.typed(NeededState, "lock_needed", list(ids))}

    async def mark_needed(self, ids: Collection[int]) -> None:
        if ids:
            await self._sql.run("mark_needed", sorted(ids))

    async def of(self, ids: Collection[int]) -> list[DependencyRow]:
        return await self._sql.typed(DependencyRow, "dependencies_of", list(ids))

    async def on(self, ids: Collection[int]) -> list[DependencyRow]:
        return await self._sql.typed(DependencyRow, "dependents", list(ids))

    async def open_on(self, ids: Collection[int]) -> list[DependencyRow]:
        return await self._sql.typed(DependencyRow, "open_dependents", list(ids))

    async def lock_dependents(self, ids: Collection[int], others: Collection[int]) -> list[int]:
        return await self._sql.ids("lock_dependents", list(ids), list(others))

    async def doomed(self, ids: Collection[int]) -> list[int]:
        return await self._sql.ids("doomed", list(ids))

    async def cancelled_with(self, ids: Collection[int]) -> list[int]:
        return await self._sql.ids("cancelled_with", list(ids))

    async def close(self, ended: Mapping[int, str]) -> None:
        for how in set(ended.values()):
            ids = [task_id for task_id, ended_as in ended.items() if ended_as == how]
            await self._sql.run("close_dependencies", ids, str(how))

    async def reopen(self, rows: Sequence[DependencyRow]) -> None:
        await self._sql.run_all("reopen_dependencies", [(row.task_id, row.needs_id) for row in rows])

    async def release(self, ids: Sequence[int]) -> list[ChangedTask]:
        return await self._sql.typed(ChangedTask, "release_dependents", list(ids))

    async def make_dependent(self, ids: Collection[int]) -> list[ChangedTask]:
        return await self._sql.typed(ChangedTask, "make_dependent", list(ids))

    async def defer(self, ids: Collection[int]) -> None:
        await self._sql.rows("defer_dependents", list(ids))

    async def unsettled(self, limit: int) -> list[int]:
        return await self._sql.ids("unsettled", limit)

    async def read(self, ids: Collection[int], most_bytes: int) -> list[NeededTask]:
        return await self._sql.typed(NeededTask, "needed_tasks", list(ids), most_bytes)

    async def needed_by(self, task_id: int) -> int | None:
        found: int | None = await self._sql.value("needed_by", task_id)
        return found

    async def delete_of(self, ids: Collection[int]) -> None:
        await self._sql.rows("delete_dependencies", list(ids))
