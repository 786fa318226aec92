"""The session of the memory store: gives the rules access to the tables, at one moment of the clock."""

from __future__ import annotations

from typing import Final

from synergon.stores import session as port
from synergon.stores.memory.audit_rows import AuditRows
from synergon.stores.memory.group_rows import GroupRows
from synergon.stores.memory.key_queue_rows import KeyQueueRows
from synergon.stores.memory.limit_rows import LimitRows
from synergon.stores.memory.node_rows import NodeRows
from synergon.stores.memory.queue_rows import QueueRows
from synergon.stores.memory.ready_rows import ReadyRows
from synergon.stores.memory.schedule_rows import ScheduleRows
from synergon.stores.memory.server_rows import ServerRows
from synergon.stores.memory.tables import Tables
from synergon.stores.memory.task_rows import TaskRows
from synergon.stores.session import NoLocks, Touched


class Session:
    """Implements `stores.session.Session` over the tables. The caller holds their lock."""

    __slots__ = (
        "audit",
        "groups",
        "key_queues",
        "limits",
        "locks",
        "nodes",
        "now",
        "queues",
        "ready",
        "schedules",
        "servers",
        "tables",
        "tasks",
        "touched",
    )

    def __init__(self, tables: Tables) -> None:
        self.tables: Final = tables
        self.now = 0
        """The moment at which the lock was taken. It does not change while the lock is held."""
        self.touched = Touched()
        self.locks: Final = NoLocks()
        self.tasks: Final[port.TaskRows] = TaskRows(self)
        self.key_queues: Final[port.KeyQueueRows] = KeyQueueRows(self)
        self.groups: Final[port.GroupRows] = GroupRows(self)
        self.queues: Final[port.QueueRows] = QueueRows(self)
        self.nodes: Final[port.NodeRows] = NodeRows(self)
        self.audit: Final[port.AuditRows] = AuditRows(self)
        self.limits: Final[port.LimitRows] = LimitRows(self)
        self.servers: Final[port.ServerRows] = ServerRows(self)
        self.schedules: Final[port.ScheduleRows] = ScheduleRows(self)
        self.ready: Final[port.ReadyRows] = ReadyRows(self)

    async def read_clock(self) -> int:
        """Read the store's clock."""
        return self.now
