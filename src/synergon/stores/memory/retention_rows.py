"""The retention in the memory store: implements `stores.session.RetentionRows` over the store's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergon.model.tasks import StoredRetention
from synergon.stores import session as port

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class RetentionRows(port.RetentionRows):
    """Implements `stores.session.RetentionRows` for the memory store."""

    __slots__ = ("_tables",)

    def __init__(self, session: Session) -> None:
        self._tables: Final = session.tables

    async def read(self) -> StoredRetention | None:
        return self._tables.retention

    async def locked(self) -> StoredRetention | None:
        """Like `read`: the caller holds the lock of the tables, so nothing is locked here."""
        return self._tables.retention

    async def write(self, retention: StoredRetention) -> None:
        self._tables.retention = retention
