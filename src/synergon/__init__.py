"""synergon: a durable task engine. One file to start with, one database to share."""

from synergon.context import Context, injected
from synergon.engine import Engine
from synergon.errors import (
    Cancel,
    ConfigurationError,
    Discard,
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
from synergon.handle import Handle
from synergon.lifecycle import Reason, State
from synergon.policies import Retention, Retry
from synergon.records import ErrorRecord, NodeRecord, Progress, QueueRecord, TaskPage, TaskRecord
from synergon.task import Call, TaskType

__all__ = [
    "Call",
    "Cancel",
    "ConfigurationError",
    "Context",
    "Discard",
    "Engine",
    "ErrorRecord",
    "Handle",
    "IllegalMove",
    "KeyConflict",
    "KindError",
    "NodeRecord",
    "NotAvailable",
    "NotConnected",
    "OptionError",
    "PayloadError",
    "Progress",
    "QueueRecord",
    "Reason",
    "ResultTimeout",
    "Retention",
    "Retry",
    "RetryAfter",
    "SchemaError",
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
    "injected",
]
