"""The session of the SQLite store: one transaction, as the rules see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from synergon.stores import claim_primitives, task_primitives
from synergon.stores import session as port
from synergon.stores.session import Locks, Part, Rows
from synergon.stores.sql_rows.audit_rows import AuditRows
from synergon.stores.sql_rows.dependency_rows import DependencyRows
from synergon.stores.sql_rows.group_rows import GroupRows
from synergon.stores.sql_rows.key_hold_rows import KeyHoldRows
from synergon.stores.sql_rows.limit_rows import LimitRows
from synergon.stores.sql_rows.named_statements import NamedStatements
from synergon.stores.sql_rows.queue_rows import QueueRows
from synergon.stores.sql_rows.retention_rows import RetentionRows
from synergon.stores.sql_rows.server_rows import ServerRows
from synergon.stores.sql_rows.statistics_rows import StatisticsRows
from synergon.stores.sqlite.count_rows import CountRows
from synergon.stores.sqlite.fair_rows import FairRows
from synergon.stores.sqlite.key_queue_rows import KeyQueueRows
from synergon.stores.sqlite.node_rows import NodeRows
from synergon.stores.sqlite.ready_rows import ReadyRows
from synergon.stores.sqlite.schedule_rows import ScheduleRows
from synergon.stores.sqlite.task_rows import TaskRows
from synergon.stores.sqlite.transaction import Statements, Transaction


def _sql(rows_type: Callable[[NamedStatements], Rows]) -> Callable[[Transaction], Rows]:
    """Make a constructor of primitives of `stores.sql_rows` that run the statements of SQLite."""
    return lambda transaction: rows_type(Statements(transaction))


class Session(Transaction):
    """Implements `stores.session.Session` over a transaction of SQLite."""

    __slots__ = ()

    tasks: Final = Part[task_primitives.TaskRows](TaskRows)
    key_holds: Final = Part[task_primitives.KeyHoldRows](_sql(KeyHoldRows))
    key_queues: Final = Part[claim_primitives.KeyQueueRows](_sql(KeyQueueRows))
    dependencies: Final = Part[task_primitives.DependencyRows](_sql(DependencyRows))
    fair: Final = Part[claim_primitives.FairRows](FairRows)
    groups: Final = Part[task_primitives.GroupRows](_sql(GroupRows))
    queues: Final = Part[port.QueueRows](_sql(QueueRows))
    nodes: Final = Part[port.NodeRows](_sql(NodeRows))
    audit: Final = Part[port.AuditRows](_sql(AuditRows))
    limits: Final = Part[claim_primitives.LimitRows](_sql(LimitRows))
    retention: Final = Part[port.RetentionRows](_sql(RetentionRows))
    servers: Final = Part[claim_primitives.ServerRows](_sql(ServerRows))
    statistics: Final = Part[port.StatisticsRows](_sql(StatisticsRows))
    schedules: Final = Part[port.ScheduleRows](_sql(ScheduleRows))
    ready: Final = Part[claim_primitives.ReadyRows](ReadyRows)
    counts: Final = Part[port.CountRows](_sql(CountRows))

    is_callers: Final = False
    """False also for a caller's transaction: it holds the only write lock, so it needs no other treatment."""
    locks: Final = Locks()
    """These locks do nothing: SQLite has one writer at a time."""

    async def read_clock(self) -> int:
        """Read the store's clock."""
        return self.now
