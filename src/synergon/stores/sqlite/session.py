"""The session of the SQLite store: one transaction, as the rules see it."""

from __future__ import annotations

from typing import Final

from synergon.stores import session as port
from synergon.stores.session import NoLocks, Part
from synergon.stores.sqlite.audit_rows import AuditRows
from synergon.stores.sqlite.group_rows import GroupRows
from synergon.stores.sqlite.key_queue_rows import KeyQueueRows
from synergon.stores.sqlite.limit_rows import LimitRows
from synergon.stores.sqlite.node_rows import NodeRows
from synergon.stores.sqlite.queue_rows import QueueRows
from synergon.stores.sqlite.ready_rows import ReadyRows
from synergon.stores.sqlite.schedule_rows import ScheduleRows
from synergon.stores.sqlite.server_rows import ServerRows
from synergon.stores.sqlite.task_rows import TaskRows
from synergon.stores.sqlite.transaction import Transaction


class Session(Transaction):
    """Implements `stores.session.Session` over a transaction of SQLite."""

    __slots__ = ()

    tasks = Part[port.TaskRows](TaskRows)
    key_queues = Part[port.KeyQueueRows](KeyQueueRows)
    groups = Part[port.GroupRows](GroupRows)
    queues = Part[port.QueueRows](QueueRows)
    nodes = Part[port.NodeRows](NodeRows)
    audit = Part[port.AuditRows](AuditRows)
    limits = Part[port.LimitRows](LimitRows)
    servers = Part[port.ServerRows](ServerRows)
    schedules = Part[port.ScheduleRows](ScheduleRows)
    ready = Part[port.ReadyRows](ReadyRows)

    locks: Final = NoLocks()
    """These locks do nothing: SQLite has one writer at a time."""

    async def read_clock(self) -> int:
        """Read the store's clock."""
        return self.now
