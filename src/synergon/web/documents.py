"""The shapes of answers that are no records of the engine."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from synergon.client.node_overview import NodeOverview
from synergon.doctor.diagnosis import Diagnosis
from synergon.model.attempts import AttemptRecord
from synergon.model.dependencies import Dependency
from synergon.model.flows import FlowRecord
from synergon.model.groups import GroupRecord
from synergon.model.lifecycle import State
from synergon.model.limits import LimitRecord, ServerRecord
from synergon.model.node_status import HintStatus
from synergon.model.operator_actions import AuditRecord
from synergon.model.schedules import FiredTask, Occurrence, ScheduleRecord
from synergon.model.task_records import QueueRecord, TaskRecord
from synergon.web.access import Role


def _changed(record: type[msgspec.Struct], name: str, without: tuple[str, ...] = (), **added: Any) -> Any:
    """The shape of a record as a document: without some fields, and with others."""
    remaining = [
        (field.encode_name, field.type)
        for field in msgspec.structs.fields(record)
        if field.encode_name not in without and field.encode_name not in added
    ]
    return msgspec.defstruct(name, [*remaining, *added.items()], kw_only=True)


if TYPE_CHECKING:  # a type checker does not run the code below
    TaskDocument = msgspec.Struct
    ScheduleDocument = msgspec.Struct
    NodeDocument = msgspec.Struct
    DiagnosisDocument = msgspec.Struct
else:
    TaskDocument = _changed(
        TaskRecord,
        "Task",
        ("payload", "overrides", "requirements", "ended_attempts"),
        arguments=dict[str, Any] | None,
        result=Any,
        attempts_made=tuple[AttemptRecord, ...],
        schedule=str | None,
        scheduled_for=str | None,
        is_suspect=bool,
        redacted=tuple[str, ...],
    )
    ScheduleDocument = _changed(ScheduleRecord, "Schedule", arguments=dict[str, Any] | None)
    NodeDocument = _changed(
        NodeOverview,
        "Node",
        ("state", "state_age", "lease_remaining"),
        lease_remaining_seconds=float,
        status_age_seconds=float,
        labels=tuple[str, ...],
        running_by_kind=dict[str, int],
        hints=HintStatus,
        resources=dict[str, Any],
        resources_free=dict[str, Any],
    )
    DiagnosisDocument = _changed(Diagnosis, "Diagnosis", nodes=tuple[dict[str, Any], ...])

"""Tasks and schedules as documents. `redacted` names the fields of a task that are hidden as a whole."""


class TaskList(msgspec.Struct):
    """One page of tasks."""

    tasks: tuple[TaskDocument, ...]
    next: str | None
    """Pass this as `after` to get the next page. None on the last page."""
    is_cut: bool
    """Whether the search for a text ended before the last task. The next page continues it."""


class ErrorGroup(msgspec.Struct):
    """Tasks with one error."""

    fingerprint: str
    """Pass this as `error` to list these tasks, or to change them all."""
    type: str
    """The type of the error. The reason of the end, if there was no error."""
    message: str
    """The message, in which each number or id is `#`, and each quoted text `'…'`."""
    count: int
    kinds: dict[str, int]
    """How many of the tasks each kind has, the commonest first."""
    first_at: datetime | None
    """When the first of these tasks ended."""
    last_at: datetime | None
    newest: TaskDocument


class ErrorList(msgspec.Struct):
    """Tasks by error, the commonest first."""

    errors: tuple[ErrorGroup, ...]
    grouped: int
    """How many tasks were grouped."""
    is_cut: bool
    """Whether there are older tasks that were not looked at."""


class Changed(msgspec.Struct):
    """The result of an operation on all tasks that match."""

    matching: int | None = None
    """In a dry run: how many tasks match. Nothing was changed."""
    visited: int | None = None
    """How many of them were looked at so far."""
    changed: int | None = None
    """How many tasks were changed so far."""
    is_done: bool = True
    """False if the operation takes longer and goes on. The audit gets its outcome."""


class Deleted(msgspec.Struct):
    """What was deleted."""

    deleted: int


class Pruned(msgspec.Struct):
    """How many tasks were deleted."""

    deleted: int | None
    is_done: bool
    """False if the operation takes longer and goes on. The audit gets its outcome."""


class CountsDocument(msgspec.Struct):
    """The number of tasks in each state."""

    counts: dict[State, int]
    counted_at: datetime | None
    """When the live tasks were counted, if there are many of them. None: just now."""


class Meta(msgspec.Struct):
    """The metadata of a task."""

    meta: dict[str, Any]


class Queues(msgspec.Struct):
    """All queues."""

    queues: tuple[QueueRecord, ...]


class IsChanged(msgspec.Struct):
    """Whether the operation has changed something."""

    name: str
    changed: bool


class KindDocument(msgspec.Struct):
    """A kind: registered in the application of this server, or on a live node."""

    kind: str
    is_registered: bool
    """Whether the code of the kind is imported here. Otherwise its arguments and results are hidden."""
    is_offered: bool
    """Whether the API enqueues tasks of this kind (`api=True`)."""
    nodes: int
    """How many live nodes run the kind."""
    queue: str | None = None
    title: str | None = None
    arguments_schema: Any = None
    """The JSON Schema of the arguments, if the kind is offered."""


class Kinds(msgspec.Struct):
    """All kinds."""

    kinds: tuple[KindDocument, ...]


class Enqueued(msgspec.Struct):
    """A stored task."""

    id: int
    created: bool
    """False if a task with this key, or of this Idempotency-Key, existed."""


class Schedules(msgspec.Struct):
    """All schedules."""

    schedules: tuple[ScheduleDocument, ...]


class Occurrences(msgspec.Struct):
    """The next occurrences of schedules, in order."""

    occurrences: tuple[Occurrence, ...]


class ScheduleRunDocument(msgspec.Struct):
    """The task that a schedule has created, or the reason why there is none."""

    task: FiredTask | None
    reason: str | None


class FlowStepDocument(msgspec.Struct):
    """A task of a flow, and the tasks that it depends on."""

    task: TaskDocument
    needs: tuple[Dependency, ...]


class FlowDocument(msgspec.Struct):
    """A flow with its steps."""

    flow: FlowRecord
    steps: tuple[FlowStepDocument, ...]


class GroupDocument(msgspec.Struct):
    """A group with its tasks."""

    group: GroupRecord
    tasks: tuple[TaskDocument, ...]


class Outcome(msgspec.Struct):
    """The outcome of an operation on a flow or group, as the audit records it."""

    id: int
    outcome: str | None


class Provider(msgspec.Struct):
    """A provider with its servers."""

    name: str
    servers: tuple[ServerRecord, ...]


class Providers(msgspec.Struct):
    """All providers."""

    providers: tuple[Provider, ...]


class Limits(msgspec.Struct):
    """All limits."""

    limits: tuple[LimitRecord, ...]


class Nodes(msgspec.Struct):
    """All nodes."""

    nodes: tuple[NodeDocument, ...]


class Requested(msgspec.Struct):
    """An operator action that the node carries out. The audit has its outcome."""

    node_id: str
    requested: str


class Audit(msgspec.Struct):
    """The latest operator actions."""

    actions: tuple[AuditRecord, ...]


class Caller(msgspec.Struct):
    """The caller: name and role."""

    name: str
    role: Role


class RetentionDocument(msgspec.Struct):
    """How long ended tasks are kept, in seconds. None means for ever."""

    succeeded_seconds: float | None
    failed_seconds: float | None
    cancelled_seconds: float | None


class ProblemDocument(msgspec.Struct):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
