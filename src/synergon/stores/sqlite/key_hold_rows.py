"""Holds of unique keys in the SQLite store: implements `stores.task_primitives.KeyHoldRows` with the statements of
`sql/key_holds.sql`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from synergon.stores import task_primitives as port
from synergon.stores.rows import KeyHold, KeyName
from synergon.stores.sqlite.transaction import Transaction, as_json


class KeyHoldRows(port.KeyHoldRows):
    """Implements `stores.task_primitives.KeyHoldRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def held(self, names: Collection[KeyName]) -> dict[KeyName, KeyHold]:
        found = self._transaction.typed(KeyHold, "key_holds", as_json(names), self._transaction.now)
        return {(hold.kind, hold.key): hold for hold in found}

    async def take(self, kind: str, key: str, task_id: int, duration: int) -> bool:
        now = self._transaction.now
        changed = self._transaction.run("take_key", kind=kind, key=key, task_id=task_id, until=now + duration, now=now)
        return changed == 1

    async def is_free(self, kind: str, key: str, task_id: int) -> bool:  # noqa: ARG002  it is the port's
        """Always True: the insert of the task has checked the key, and this transaction is the only writer."""
        return True

    async def release(self, task_id: int) -> None:
        self._transaction.run("release_key", task_id)

    async def prune(self, limit: int) -> None:
        self._transaction.run("prune_key_holds", self._transaction.now, limit)
