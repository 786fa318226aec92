"""Dependencies in the SQLite store: implements `stores.task_primitives.DependencyRows` with the statements of
`sql/dependencies.sql`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import astuple

from synergon.model.lifecycle import State
from synergon.stores import task_primitives as port
from synergon.stores.rows import ChangedTask, DependencyRow, NeededState, NeededTask
from synergon.stores.sqlite.transaction import Transaction, as_json


class DependencyRows(port.DependencyRows):
    """Implements `stores.task_primitives.DependencyRows` for the SQLite store. Needs no locks, because SQLite has one
    writer at a time."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def add(self, rows: Sequence[DependencyRow]) -> None:
        self._transaction.run_each("add_dependency", [astuple(row) for row in rows])

    async def lock_needed(self, ids: Collection[int]) -> dict[int, State]:
        found = self._transaction.typed(NeededState, "needed_states", ids=as_json(ids))
        return {task.id: task.state for task in found}

    async def mark_needed(self, ids: Collection[int]) -> None:
        if ids:
            self._transaction.run("mark_needed", as_json(ids))

    async def of(self, ids: Collection[int]) -> list[DependencyRow]:
        return self._transaction.typed(DependencyRow, "dependencies_of", as_json(ids))

    async def on(self, ids: Collection[int]) -> list[DependencyRow]:
        return self._transaction.typed(DependencyRow, "dependents", as_json(ids))

    async def open_on(self, ids: Collection[int]) -> list[DependencyRow]:
        return self._transaction.typed(DependencyRow, "open_dependents", as_json(ids))

    async def lock_dependents(self, ids: Collection[int], others: Collection[int]) -> list[int]:
        return list(set(self._transaction.ids("ids_of_dependents", as_json(ids))).union(others))

    async def doomed(self, ids: Collection[int]) -> list[int]:
        return self._transaction.ids("doomed", as_json(ids))

    async def cancelled_with(self, ids: Collection[int]) -> list[int]:
        return self._transaction.ids("cancelled_with", as_json(ids))

    async def close(self, ended: Mapping[int, str]) -> None:
        self._transaction.run("close_dependencies", as_json((task_id, str(how)) for task_id, how in ended.items()))

    async def reopen(self, rows: Sequence[DependencyRow]) -> None:
        self._transaction.run_each("reopen_dependency", [(row.task_id, row.needs_id) for row in rows])

    async def release(self, ids: Sequence[int]) -> list[ChangedTask]:
        return self._transaction.typed(ChangedTask, "release_dependents", self._transaction.now, as_json(ids))

    async def make_dependent(self, ids: Collection[int]) -> list[ChangedTask]:
        return self._transaction.typed(ChangedTask, "make_dependent", as_json(ids))

    async def defer(self, ids: Collection[int]) -> None:
        self._transaction.run("defer_dependents", as_json(ids))

    async def unsettled(self, limit: int) -> list[int]:
        return self._transaction.ids("unsettled", self._transaction.now, limit)

    async def read(self, ids: Collection[int], most_bytes: int) -> list[NeededTask]:
        return self._transaction.typed(NeededTask, "needed_tasks", ids=as_json(ids), most_bytes=most_bytes)

    async def needed_by(self, task_id: int) -> int | None:
        row = self._transaction.row("needed_by", task_id)
        return None if row is None else int(row[0])

    async def delete_of(self, ids: Collection[int]) -> None:
        self._transaction.run("delete_dependencies", as_json(ids))
