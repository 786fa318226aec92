"""Holds of unique keys in the PostgreSQL store: implements `stores.task_primitives.KeyHoldRows` with the statements of
`sql/key_holds.sql`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from synergon.stores import task_primitives as port
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import KeyHold, KeyName


class KeyHoldRows(port.KeyHoldRows):
    """Implements `stores.task_primitives.KeyHoldRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def held(self, names: Collection[KeyName]) -> dict[KeyName, KeyHold]:
        kinds, keys = zip(*names, strict=True) if names else ((), ())
        found = await self._transaction.typed(KeyHold, "key_holds", list(kinds), list(keys))
        return {(hold.kind, hold.key): hold for hold in found}

    async def take(self, kind: str, key: str, task_id: int, duration: int) -> bool:
        return await self._transaction.value("take_key", kind, key, task_id, duration) is not None

    async def is_free(self, kind: str, key: str, task_id: int) -> bool:
        return await self._transaction.value("other_key_hold", kind, key, task_id) is None

    async def release(self, task_id: int) -> None:
        await self._transaction.run("release_key", task_id)

    async def prune(self, limit: int) -> None:
        await self._transaction.run("prune_key_holds", limit)
