"""The session of the SQLite store: one transaction, as the rules see it."""

from __future__ import annotations

from typing import Final

from synergon.stores import claim_primitives, task_primitives
from synergon.stores import session as port
from synergon.stores.session import Locks, Part
from synergon.stores.sqlite.audit_rows import AuditRows
from synergon.stores.sqlite.count_rows import CountRows
from synergon.stores.sqlite.dependency_rows import DependencyRows
from synergon.stores.sqlite.fair_rows import FairRows
from synergon.stores.sqlite.group_rows import GroupRows
from synergon.stores.sqlite.key_hold_rows import KeyHoldRows
from synergon.stores.sqlite.key_queue_rows import KeyQueueRows
from synergon.stores.sqlite.limit_rows import LimitRows
from synergon.stores.sqlite.node_rows import NodeRows
from synergon.stores.sqlite.queue_rows import QueueRows
from synergon.stores.sqlite.ready_rows import ReadyRows
from synergon.stores.sqlite.retention_rows import RetentionRows
from synergon.stores.sqlite.schedule_rows import ScheduleRows
from synergon.stores.sqlite.server_rows import ServerRows
from synergon.stores.sqlite.statistics_rows import StatisticsRows
from synergon.stores.sqlite.task_rows import TaskRows
from synergon.stores.sqlite.transaction import Transaction


class Session(Transaction):
    """Implements `stores.session.Session` over a transaction of SQLite."""

    __slots__ = ()

    tasks: Final = Part[task_primitives.TaskRows](TaskRows)
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

    is_callers: Final = False
    """Also in a caller's transaction, which holds the only write lock."""
    locks: Final = Locks()
    """These locks do nothing: SQLite has one writer at a time."""

    async def read_clock(self) -> int:
        """Read the store's clock."""
        return self.now
