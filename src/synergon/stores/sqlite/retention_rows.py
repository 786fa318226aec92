"""The retention in the SQLite store: implements `stores.session.RetentionRows` with the statements of
`sql/retention.sql`."""

from __future__ import annotations

from typing import Final

from msgspec.structs import astuple

from synergon.model.tasks import StoredRetention
from synergon.stores import session as port
from synergon.stores.sqlite.transaction import Transaction


class RetentionRows(port.RetentionRows):
    """Implements `stores.session.RetentionRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def read(self) -> StoredRetention | None:
        found = self._transaction.typed(StoredRetention, "retention")
        return found[0] if found else None

    async def locked(self) -> StoredRetention | None:
        """`read`: SQLite has one writer at a time."""
        return await self.read()

    async def write(self, retention: StoredRetention) -> None:
        self._transaction.run("set_retention", *astuple(retention))
