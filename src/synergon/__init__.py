"""synergon: a durable task engine. One file to start with, one database to share."""

from synergon.candidates import Candidate
from synergon.context import Context, injected
from synergon.control_records import GroupRecord, OrderRecord
from synergon.engine import Engine
from synergon.errors import (
    Cancel,
    CommandsFailed,
    ConfigurationError,
    DataRefused,
    Discard,
    EventsLost,
    IllegalMove,
    KeyConflict,
    KindError,
    NotAvailable,
    NotConnected,
    OptionError,
    PayloadError,
    ResultTimeout,
    RetryAfter,
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
from synergon.event_records import Event
from synergon.explaining.records import Cause, Explanation, NodeOutlook, Why
from synergon.group import Group
from synergon.handle import Handle
from synergon.lifecycle import Reason, State
from synergon.limit_records import LimitRecord, ServerRecord
from synergon.middleware import CallNext
from synergon.node_records import NodeRecord
from synergon.node_state import NodeState
from synergon.policies import Health, Rate, Resources, Retention, Retry
from synergon.providers.commands import Command
from synergon.providers.kind import Kind
from synergon.providers.provider import Provider, ProviderTask
from synergon.providers.server import Server
from synergon.records import ErrorRecord, Progress, QueueRecord, TaskPage, TaskRecord
from synergon.task import Call, TaskType

__all__ = [
    "Call",
    "CallNext",
    "Cancel",
    "Candidate",
    "Cause",
    "Command",
    "CommandsFailed",
    "ConfigurationError",
    "Context",
    "DataRefused",
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
    "NodeState",
    "NotAvailable",
    "NotConnected",
    "OptionError",
    "OrderRecord",
    "PayloadError",
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
