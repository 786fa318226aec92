"""Unique keys that outlive their tasks: implements `stores.task_primitives.KeyHoldRows` with the statements of
`sql/key_holds.sql`."""

from __future__ import annotations

from collections.abc import Collection

from synergon.stores import task_primitives as port
from synergon.stores.rows import KeyHold, KeyName
from synergon.stores.sql_rows.named_statements import SqlRows


class KeyHoldRows(SqlRows, port.KeyHoldRows):
    """Implements `stores.task_primitives.KeyHoldRows`."""

    __slots__ = ()

    async def held(self, names: Collection[KeyName]) -> dict[KeyName, KeyHold]:
        found = await self._sql.typed(KeyHold, "key_holds", *self._sql.pairs(names))
        return {(hold.kind, hold.key): hold for hold in found}

    async def take(self, kind: str, key: str, task_id: int, duration: int) -> bool:
        return await self._sql.value("take_key", kind, key, task_id, duration) is not None

    async def is_free(self, kind: str, key: str, task_id: int) -> bool:
        return await self._sql.value("other_key_hold", kind, key, task_id) is None

    async def release(self, task_id: int) -> None:
        await self._sql.run("release_key", task_id)

    async def prune(self, limit: int) -> None:
        await self._sql.run("prune_key_holds", limit)
