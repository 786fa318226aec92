"""Queues: implements `stores.session.QueueRows` with the statements of `sql/operations.sql`."""

from __future__ import annotations

from synergon.stores import session as port
from synergon.stores.sql_rows.named_statements import SqlRows


class QueueRows(SqlRows, port.QueueRows):
    """Implements `stores.session.QueueRows`."""

    __slots__ = ()

    async def pause(self, queue: str) -> bool:
        return await self._sql.run("pause_queue", queue) == 1

    async def resume(self, queue: str) -> bool:
        return await self._sql.run("resume_queue", queue) == 1
