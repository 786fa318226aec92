"""The retention of final tasks: implements `stores.session.RetentionRows` with the statements of
`sql/retention.sql`."""

from __future__ import annotations

from msgspec.structs import astuple

from synergon.model.tasks import StoredRetention
from synergon.stores import session as port
from synergon.stores.sql_rows.named_statements import SqlRows


class RetentionRows(SqlRows, port.RetentionRows):
    """Implements `stores.session.RetentionRows`."""

    __slots__ = ()

    async def read(self) -> StoredRetention | None:
        return await self._read("retention")

    async def locked(self) -> StoredRetention | None:
        return await self._read("retention_locked")

    async def _read(self, statement: str) -> StoredRetention | None:
        found = await self._sql.typed(StoredRetention, statement)
        return found[0] if found else None

    async def write(self, retention: StoredRetention) -> None:
        await self._sql.run("set_retention", *astuple(retention))
