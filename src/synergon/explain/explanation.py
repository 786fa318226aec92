"""The records of an explanation: its causes, and the outlook of each node."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from synergon.model.lifecycle import State
from synergon.model.record import Record
from synergon.model.schedules import ScheduleState

FARTHEST: Final = 1000
"""Positions are counted only up to this number."""


class Why(StrEnum):
    """The reasons for which a task may wait."""

    # The task is not ready yet.
    DELAYED = "delayed"
    RETRYING = "retrying"
    """The task has failed and is retried; `subject` is the type of the error."""
    SERVER_FAILED = "server_failed"
    """The task has blamed server `subject`, and has tried all servers in service. It has blamed servers `in_use` times;
    `of` times are not charged."""
    SNOOZED = "snoozed"
    """The task function has asked to run again later."""
    RATE = "rate"
    """The rate of the task's key queue permits a start only later."""
    DUE = "due"
    """The task is due. The next check by a live node makes it ready."""
    EXPIRED = "expired"
    """The task was not started in time. The next check by a live node ends it."""
    KEY_QUEUE = "key_queue"
    """Other tasks of the task's key queue precede it. At most `Cause.of` tasks of the key queue run at once."""
    DEPENDENCY = "dependency"
    """The task depends on task `subject` of kind `kind`, which has not ended; `state` is its state."""
    BATCH = "batch"
    """The task waits for its batch, which has `in_use` of `of` tasks and starts at `until` at the latest. Without
    `until`, the batch starts when the first of its tasks, which is `ready`, is claimed."""

    # Causes that all nodes share.
    PAUSED = "paused"
    UNKNOWN_KIND = "unknown_kind"
    """No live node runs the kind."""
    LIMIT = "limit"
    LIMIT_RATE = "limit_rate"
    """The rate of the limit `subject` permits a start only at `until`."""
    SERVER = "server"
    BACKED_OFF = "backed_off"
    ON_TRIAL = "on_trial"
    """The server `subject` gets one task at a time until a task succeeds, because tasks have failed on it."""
    PROBED = "probed"
    """The server `subject` is out of service until a probe succeeds. The next probe is at `until`."""
    REMOVED = "removed"
    """The target server of the task is no longer in the pool."""
    NO_SERVERS = "no_servers"

    # Causes on one node.
    SILENT = "silent"
    """The lease of the node has ended, or its process is dead."""
    NO_STATUS = "no_status"
    """The node has not published its status yet."""
    CORDONED = "cordoned"
    STOPPING = "stopping"
    OTHER_QUEUES = "other_queues"
    LABEL_MISSING = "label_missing"
    LABEL_FORBIDDEN = "label_forbidden"
    TOO_SMALL = "too_small"
    """The node has `of` in total, and the task needs more."""
    REFUSED = "refused"
    """The arguments do not fit the task function of the node; `subject` is the error."""
    SLOTS = "slots"
    MAX_RUNNING = "max_running"
    QUEUE_BOUND = "queue_bound"
    """The node runs `in_use` tasks of queue `subject`, and may run `of`. Some of them are `tasks`."""
    PROVIDER_BOUND = "provider_bound"
    """The node runs `in_use` tasks of provider `subject`, and may run `of`. Some of them are `tasks`."""
    PROCESSES = "processes"
    """No child process is free: `in_use` of `of` are in use, some of them by `tasks`."""
    THREADS = "threads"
    """No thread is free: `in_use` of `of` are in use, some of them by `tasks`."""
    RESOURCE = "resource"
    """Too little of a resource is free: `in_use` of `of` are used, some of it by `tasks`."""
    OCCUPIED = "occupied"
    """The task is a suspect that must run alone on the node, and other tasks run there."""
    RESERVED = "reserved"
    """The free capacity is reserved for the task `subject`."""
    WILL_RESERVE = "will_reserve"
    """The next claim will reserve the free capacity for the task `subject`."""
    UNYIELDING = "unyielding"
    """Running tasks did not yield to a task of kind `subject`. None is asked to yield to the kind again before
    `until`."""
    NOT_YET_ACCEPTED = "not_yet_accepted"
    """The node calls `can_accept` before it claims, and has no answer for this task yet."""
    REJECTED = "rejected"
    """`can_accept` has rejected the task. The node calls it again at `until`."""
    BEHIND = "behind"
    """The node has free capacity, but other tasks precede this one."""


SHARED: Final = frozenset(
    {
        Why.PAUSED,
        Why.LIMIT,
        Why.LIMIT_RATE,
        Why.SERVER,
        Why.BACKED_OFF,
        Why.ON_TRIAL,
        Why.PROBED,
        Why.REMOVED,
        Why.NO_SERVERS,
    }
)
"""Causes that do not depend on the node."""

NEVER: Final = frozenset({Why.LABEL_MISSING, Why.LABEL_FORBIDDEN, Why.TOO_SMALL, Why.REFUSED})
"""Causes for which a node can never run the task, unless it is restarted with other labels, resources or
code."""


class Cause(Record, frozen=True, kw_only=True):
    """One cause for which a task waits. Which fields are set depends on `why`."""

    why: Why
    subject: str = ""
    """The name of the queue, limit, provider, server, resource, label or error type, the id of a task, or an error."""
    in_use: float | None = None
    of: float | None = None
    rate: str = ""
    """The rate of the limit, like `600 per minute`."""
    needed: float | None = None
    """The amount of the resource that the task needs. Memory is in bytes."""
    tasks: tuple[int, ...] = ()
    """Some of the tasks that use the resource."""
    kind: str | None = None
    """The kind of the task that is waited for."""
    state: State | None = None
    """The state of that task."""
    since: datetime | None = None
    until: datetime | None = None


class NodeOutlook(Record, frozen=True, kw_only=True):
    """Whether one node can start the task, and if not, why."""

    id: str
    name: str
    can_start: bool
    """Whether the node's next claim would take the task."""
    causes: tuple[Cause, ...] = ()
    """Why the node does not start the task, including causes that all nodes share."""
    will_reserve: bool = False
    """Whether the task does not fit, and the node's next claim would reserve capacity for it. If there are several such
    nodes, the first that claims reserves it."""
    age: float = 0.0
    """The age of the node's status in seconds. 0 for the node of this process."""


class Explanation(Record, frozen=True, kw_only=True):
    """Why a task waits, how it runs, or how it ended."""

    id: int
    kind: str
    state: State
    sentence: str
    causes: tuple[Cause, ...] = ()
    """The causes that apply on all nodes."""
    nodes: tuple[NodeOutlook, ...] = ()
    """The nodes that run the kind. Empty unless the task is `ready`, or none of them can ever run it."""
    position: int | None = None
    """The position, from 1, among the tasks of the task's kind, state and key queue. Exact up to 1000; 1001 means any
    later position. None if the task is neither `waiting` nor `ready`."""
    tenants_ahead: dict[str, int] = msgspec.field(default_factory=dict)
    """If the tenants of the kind take turns: how many ready tasks of each tenant precede the task. Tasks beyond the
    position 1000 may be missing."""
    reserved_by: str | None = None
    """The id of the live node that has reserved capacity for the task. None if there is none."""

    def __str__(self) -> str:
        return self.sentence

    @property
    def can_start_on(self) -> tuple[NodeOutlook, ...]:
        """The nodes whose next claim would take the task."""
        return tuple(node for node in self.nodes if node.can_start)


class ScheduleExplanation(Record, frozen=True, kw_only=True):
    """Why a schedule fires or does not fire: its state, and one sentence for people."""

    name: str
    state: ScheduleState
    sentence: str
    is_kind_known: bool
    """Whether a live node can run its tasks."""

    def __str__(self) -> str:
        return self.sentence
