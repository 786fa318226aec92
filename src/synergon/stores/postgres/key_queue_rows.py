"""Key queues in the PostgreSQL store: reads the limits of key queues under the locks of their kinds."""

from __future__ import annotations

from collections.abc import Collection

from synergon.stores.postgres.lock_order import lock_key_queues
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import KeyQueueLimit
from synergon.stores.sql_rows.key_queue_rows import KeyQueueRows as SqlKeyQueueRows


class KeyQueueRows(SqlKeyQueueRows):
    """Adapts `stores.sql_rows.key_queue_rows` to the PostgreSQL store."""

    __slots__ = ()
    _sql: Transaction

    async def limits(self, kinds: Collection[str]) -> dict[str, KeyQueueLimit]:
        await lock_key_queues(self._sql, kinds)
        return {kind: self._sql.key_queue_limits[kind] for kind in kinds}
