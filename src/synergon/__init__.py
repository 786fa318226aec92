"""synergon: a durable task engine. One file to start with, one database to share."""

from synergon.call import Call
from synergon.context import Context, injected
from synergon.engine import Engine
from synergon.errors import (
    BatchErrors,
    Cancel,
    CommandsFailed,
    ConfigurationError,
    DataRejected,
    Discard,
    EventsLost,
    IllegalMove,
    KeyConflict,
    KindError,
    NameNotFound,
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
    ServerFailed,
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
from synergon.flow import Flow, MapStep, Step
from synergon.flow_run import FlowRun
from synergon.group import Group
from synergon.handle import Handle
from synergon.model.attempts import AttemptOutcome, AttemptRecord, BatchItem, UnfinishedTask
from synergon.model.cluster_status import ClusterStatus, KindAge, QueueStatus, WorkerStatus
from synergon.model.dependencies import Dependency
from synergon.model.events import Event, ServerEvent
from synergon.model.flows import FlowPage, FlowRecord, FlowStep
from synergon.model.groups import GroupRecord
from synergon.model.lifecycle import Reason, State
from synergon.model.limits import LimitRecord, ServerRecord
from synergon.model.log_records import TaskLogFilter
from synergon.model.node_status import NodeStatus
from synergon.model.nodes import NodeRecord
from synergon.model.operator_actions import AuditRecord
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.schedules import Occurrence, ScheduleRecord
from synergon.model.task_records import QueueRecord, TaskPage, TaskRecord
from synergon.model.task_statistics import ErrorCount, Histogram, Statistics, StatisticsPoint
from synergon.options.acceptor import Candidate
from synergon.options.middleware_checks import CallNext
from synergon.options.options import CallOptions
from synergon.policies import Batch, Health, Rate, Resources, Retention, Retry, Secret
from synergon.providers.commands import Command
from synergon.providers.kind import Kind
from synergon.providers.provider import Provider, ProviderTask
from synergon.providers.server import Server
from synergon.task import TaskType

__all__ = [
    "AttemptOutcome",
    "AttemptRecord",
    "AuditRecord",
    "Batch",
    "BatchErrors",
    "BatchItem",
    "Call",
    "CallNext",
    "CallOptions",
    "Cancel",
    "Candidate",
    "Cause",
    "ClusterStatus",
    "Command",
    "CommandsFailed",
    "ConfigurationError",
    "Context",
    "DataRejected",
    "Dependency",
    "Discard",
    "Engine",
    "ErrorCount",
    "ErrorRecord",
    "Event",
    "EventsLost",
    "Explanation",
    "Flow",
    "FlowPage",
    "FlowRecord",
    "FlowRun",
    "FlowStep",
    "Group",
    "GroupRecord",
    "Handle",
    "Health",
    "Histogram",
    "IllegalMove",
    "KeyConflict",
    "Kind",
    "KindAge",
    "KindError",
    "LimitRecord",
    "MapStep",
    "NameNotFound",
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
    "QueueStatus",
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
    "Secret",
    "Server",
    "ServerEvent",
    "ServerFailed",
    "ServerRecord",
    "Snooze",
    "State",
    "Statistics",
    "StatisticsPoint",
    "Step",
    "StoreError",
    "StoreUnavailable",
    "SynergonError",
    "TaskCancelled",
    "TaskDeleted",
    "TaskError",
    "TaskFailed",
    "TaskLogFilter",
    "TaskNotFound",
    "TaskPage",
    "TaskRecord",
    "TaskType",
    "UnfinishedTask",
    "Why",
    "WorkerStatus",
    "injected",
]
