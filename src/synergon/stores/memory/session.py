"""The session of the memory store: gives the rules access to the tables, at one moment of the clock."""

from __future__ import annotations

from typing import Final

from synergon.stores import claim_primitives, task_primitives
from synergon.stores import session as port
from synergon.stores.memory.audit_rows import AuditRows
from synergon.stores.memory.count_rows import CountRows
from synergon.stores.memory.dependency_rows import DependencyRows
from synergon.stores.memory.fair_rows import FairRows
from synergon.stores.memory.group_rows import GroupRows
from synergon.stores.memory.key_hold_rows import KeyHoldRows
from synergon.stores.memory.key_queue_rows import KeyQueueRows
from synergon.stores.memory.limit_rows import LimitRows
from synergon.stores.memory.node_rows import NodeRows
from synergon.stores.memory.queue_rows import QueueRows
from synergon.stores.memory.ready_rows import ReadyRows
from synergon.stores.memory.retention_rows import RetentionRows
from synergon.stores.memory.schedule_rows import ScheduleRows
from synergon.stores.memory.server_rows import ServerRows
from synergon.stores.memory.statistics_rows import StatisticsRows
from synergon.stores.memory.tables import Tables
from synergon.stores.memory.task_rows import TaskRows
from synergon.stores.session import Locks, Touched


class Session:
    """Implements `stores.session.Session` over the tables. The caller holds their lock."""

    __slots__ = (
        "audit",
        "counts",
        "dependencies",
        "fair",
        "groups",
        "key_holds",
        "key_queues",
        "limits",
        "locks",
        "nodes",
        "now",
        "queues",
        "ready",
        "retention",
        "schedules",
        "servers",
        "statistics",
        "tables",
        "tasks",
        "touched",
    )

    is_callers: Final = False

    def __init__(self, tables: Tables) -> None:
        self.tables: Final = tables
        self.now: int = 0
        """The moment at which the lock was taken. It does not change while the lock is held."""
        self.touched: Touched = Touched()
        self.locks: Final = Locks()
        self.tasks: Final[task_primitives.TaskRows] = TaskRows(self)
        self.key_holds: Final[task_primitives.KeyHoldRows] = KeyHoldRows(self)
        self.key_queues: Final[claim_primitives.KeyQueueRows] = KeyQueueRows(self)
        self.dependencies: Final[task_primitives.DependencyRows] = DependencyRows(self)
        self.fair: Final[claim_primitives.FairRows] = FairRows(self)
        self.groups: Final[task_primitives.GroupRows] = GroupRows(self)
        self.queues: Final[port.QueueRows] = QueueRows(self)
        self.nodes: Final[port.NodeRows] = NodeRows(self)
        self.audit: Final[port.AuditRows] = AuditRows(self)
        self.limits: Final[claim_primitives.LimitRows] = LimitRows(self)
        self.retention: Final[port.RetentionRows] = RetentionRows(self)
        self.servers: Final[claim_primitives.ServerRows] = ServerRows(self)
        self.statistics: Final[port.StatisticsRows] = StatisticsRows(self)
        self.schedules: Final[port.ScheduleRows] = ScheduleRows(self)
        self.ready: Final[claim_primitives.ReadyRows] = ReadyRows(self)
        self.counts: Final[port.CountRows] = CountRows(self)

    async def read_clock(self) -> int:
        """Read the store's clock."""
        return self.now
