"""synergon: a durable task engine. One file to start with, one database to share."""

from synergon.context import Context, injected
from synergon.engine import Engine
from synergon.errors import (
    Cancel,
    CommandsFailed,
    ConfigurationError,
    DataRejected,
    Discard,
    EventsLost,
    IllegalMove,
    KeyConflict,
    KindError,
    NotAvailable,
    NotConnected,
    OptionError,
    PayloadError,
    PermissionDenied,
    ResultTimeout,
    RetryAfter,
    ScheduleError,
    ScheduleExists,
    ScheduleNotFound,
    SchemaError,
    Snooze,
    StoreError,
    StoreUnavailable,
    SynergonError,
    TaskCancelled,
    TaskDeleted,
    TaskError,
    TaskFailed,
    TaskNotFound,
)
from synergon.explain.explanation import Cause, Explanation, NodeOutlook, ScheduleExplanation, Why
from synergon.group import Group
from synergon.handle import Handle
from synergon.model.events import Event
from synergon.model.groups import GroupRecord
from synergon.model.lifecycle import Reason, State
from synergon.model.limits import LimitRecord, ServerRecord
from synergon.model.node_status import NodeStatus
from synergon.model.nodes import NodeRecord
from synergon.model.operator_actions import AuditRecord
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.schedules import Occurrence, ScheduleRecord
from synergon.model.task_records import QueueRecord, TaskPage, TaskRecord
from synergon.options.acceptor import Candidate
from synergon.options.middleware_checks import CallNext
from synergon.policies import Health, Rate, Resources, Retention, Retry
from synergon.providers.commands import Command
from synergon.providers.kind import Kind
from synergon.providers.provider import Provider, ProviderTask
from synergon.providers.server import Server
from synergon.task import Call, TaskType

__all__ = [
    "AuditRecord",
    "Call",
    "CallNext",
    "Cancel",
    "Candidate",
    "Cause",
    "Command",
    "CommandsFailed",
    "ConfigurationError",
    "Context",
    "DataRejected",
    "Discard",
    "Engine",
    "ErrorRecord",
    "Event",
    "EventsLost",
    "Explanation",
    "Group",
    "GroupRecord",
    "Handle",
    "Health",
    "IllegalMove",
    "KeyConflict",
    "Kind",
    "KindError",
    "LimitRecord",
    "NodeOutlook",
    "NodeRecord",
    "NodeStatus",
    "NotAvailable",
    "NotConnected",
    "Occurrence",
    "OptionError",
    "PayloadError",
    "PermissionDenied",
    "Progress",
    "Provider",
    "ProviderTask",
    "QueueRecord",
    "Rate",
    "Reason",
    "Resources",
    "ResultTimeout",
    "Retention",
    "Retry",
    "RetryAfter",
    "ScheduleError",
    "ScheduleExists",
    "ScheduleExplanation",
    "ScheduleNotFound",
    "ScheduleRecord",
    "SchemaError",
    "Server",
    "ServerRecord",
    "Snooze",
    "State",
    "StoreError",
    "StoreUnavailable",
    "SynergonError",
    "TaskCancelled",
    "TaskDeleted",
    "TaskError",
    "TaskFailed",
    "TaskNotFound",
    "TaskPage",
    "TaskRecord",
    "TaskType",
    "Why",
    "injected",
]
