"""The session of the PostgreSQL store: one transaction, as the rules see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from synergon.model.record import from_datetime
from synergon.stores import session as port
from synergon.stores.postgres.audit_rows import AuditRows
from synergon.stores.postgres.group_rows import GroupRows
from synergon.stores.postgres.key_queue_rows import KeyQueueRows
from synergon.stores.postgres.limit_rows import LimitRows
from synergon.stores.postgres.lock_order import LockOrder
from synergon.stores.postgres.node_rows import NodeRows
from synergon.stores.postgres.queue_rows import QueueRows
from synergon.stores.postgres.ready_rows import ReadyRows
from synergon.stores.postgres.schedule_rows import ScheduleRows
from synergon.stores.postgres.server_rows import ServerRows
from synergon.stores.postgres.task_rows import TaskRows
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.session import Part
from synergon.stores.unreadable import UnreadableRows

if TYPE_CHECKING:
    from synergon.stores.postgres.profile import Profile


class Session(Transaction):
    """Implements `stores.session.Session` over a transaction of PostgreSQL."""

    __slots__ = ("_now",)

    tasks = Part[port.TaskRows](TaskRows)
    locks = Part(LockOrder)
    key_queues = Part[port.KeyQueueRows](KeyQueueRows)
    groups = Part[port.GroupRows](GroupRows)
    queues = Part[port.QueueRows](QueueRows)
    nodes = Part[port.NodeRows](NodeRows)
    audit = Part[port.AuditRows](AuditRows)
    limits = Part[port.LimitRows](LimitRows)
    servers = Part[port.ServerRows](ServerRows)
    schedules = Part[port.ScheduleRows](ScheduleRows)
    ready = Part[port.ReadyRows](ReadyRows)

    def __init__(
        self,
        connection: Any,
        profile: Profile,
        sql: Mapping[str, str],
        shard: int,
        unreadable: UnreadableRows | None = None,
        *,
        is_callers: bool = False,
    ) -> None:
        super().__init__(connection, profile, sql, shard, unreadable, is_callers=is_callers)
        self._now: int | None = None

    async def read_clock(self) -> int:
        """Read the store's clock: the moment at which the transaction began."""
        if self._now is None:
            self._now = from_datetime(await self.value("now"))
        return self._now
