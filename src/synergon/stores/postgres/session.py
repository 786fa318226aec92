"""The session of the PostgreSQL store: one transaction, as the rules see it."""

from __future__ import annotations

from typing import Final

from synergon.model.record import from_datetime
from synergon.stores import claim_primitives, task_primitives
from synergon.stores import session as port
from synergon.stores.postgres.dependency_rows import DependencyRows
from synergon.stores.postgres.fair_rows import FairRows
from synergon.stores.postgres.key_queue_rows import KeyQueueRows
from synergon.stores.postgres.limit_rows import LimitRows
from synergon.stores.postgres.lock_order import LockOrder
from synergon.stores.postgres.node_rows import NodeRows
from synergon.stores.postgres.ready_rows import ReadyRows
from synergon.stores.postgres.schedule_rows import ScheduleRows
from synergon.stores.postgres.server_rows import ServerRows
from synergon.stores.postgres.statistics_rows import StatisticsRows
from synergon.stores.postgres.task_rows import TaskRows
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.session import Part
from synergon.stores.sql_rows.audit_rows import AuditRows
from synergon.stores.sql_rows.count_rows import CountRows
from synergon.stores.sql_rows.group_rows import GroupRows
from synergon.stores.sql_rows.key_hold_rows import KeyHoldRows
from synergon.stores.sql_rows.queue_rows import QueueRows
from synergon.stores.sql_rows.retention_rows import RetentionRows


class Session(Transaction):
    """Implements `stores.session.Session` over a transaction of PostgreSQL."""

    __slots__ = ()

    tasks: Final = Part[task_primitives.TaskRows](TaskRows)
    locks: Final = Part(LockOrder)
    key_holds: Final = Part[task_primitives.KeyHoldRows](KeyHoldRows)
    key_queues: Final = Part[claim_primitives.KeyQueueRows](KeyQueueRows)
    dependencies: Final = Part[task_primitives.DependencyRows](DependencyRows)
    fair: Final = Part[claim_primitives.FairRows](FairRows)
    groups: Final = Part[task_primitives.GroupRows](GroupRows)
    queues: Final = Part[port.QueueRows](QueueRows)
    nodes: Final = Part[port.NodeRows](NodeRows)
    audit: Final = Part[port.AuditRows](AuditRows)
    limits: Final = Part[claim_primitives.LimitRows](LimitRows)
    retention: Final = Part[port.RetentionRows](RetentionRows)
    servers: Final = Part[claim_primitives.ServerRows](ServerRows)
    statistics: Final = Part[port.StatisticsRows](StatisticsRows)
    schedules: Final = Part[port.ScheduleRows](ScheduleRows)
    ready: Final = Part[claim_primitives.ReadyRows](ReadyRows)
    counts: Final = Part[port.CountRows](CountRows)

    async def read_clock(self) -> int:
        """Read the store's clock: the moment at which the transaction began."""
        if self.clock is None:
            self.clock = from_datetime(await self.value("now"))
        return self.clock
