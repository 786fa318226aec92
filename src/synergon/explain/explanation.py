"""The records of an explanation: its causes, and the outlook of each node."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

from synergon.model.lifecycle import State
from synergon.model.record import Record

FARTHEST: Final = 1000
"""Positions are counted up to this number."""


class Why(StrEnum):
    """The reasons for which a task may wait."""

    # The task is not ready yet.
    DELAYED = "delayed"
    RETRYING = "retrying"
    """The task has failed and is retried; `subject` is the type of the error."""
    SNOOZED = "snoozed"
    """The task function has asked to run again later."""
    RATE = "rate"
    """The rate of its key queue permits a start only later."""
    DUE = "due"
    """The task is due. The next check by a live node makes it ready."""
    EXPIRED = "expired"
    """The task was not started in time. The next check by a live node ends it."""
    KEY_QUEUE = "key_queue"
    """Other tasks of its key queue precede it; `of` may run at once."""
    GROUP = "group"
    """The task starts when the group `subject` has ended; `in_use` tasks of that group are live."""

    # Causes that all nodes share.
    PAUSED = "paused"
    UNKNOWN_KIND = "unknown_kind"
    """No live node runs the kind."""
    LIMIT = "limit"
    SERVER = "server"
    BACKED_OFF = "backed_off"
    REMOVED = "removed"
    """The target server of the task is no longer in the pool."""
    NO_SERVERS = "no_servers"

    # Causes on one node.
    SILENT = "silent"
    """The node's lease has ended, or its process is gone."""
    NO_STATUS = "no_status"
    """The node has not published its status yet."""
    CORDONED = "cordoned"
    STOPPING = "stopping"
    OTHER_QUEUES = "other_queues"
    LABEL_MISSING = "label_missing"
    LABEL_FORBIDDEN = "label_forbidden"
    TOO_SMALL = "too_small"
    """The node has `of` in total, and the task needs more."""
    SLOTS = "slots"
    MAX_RUNNING = "max_running"
    QUEUE_BOUND = "queue_bound"
    """The node runs `in_use` of at most `of` tasks of queue `subject`, some of them are `tasks`."""
    PROVIDER_BOUND = "provider_bound"
    """The node runs `in_use` of at most `of` tasks of provider `subject`, some of them are `tasks`."""
    PROCESSES = "processes"
    """No child process is free: `in_use` of `of` are used, some of them by `tasks`."""
    RESOURCE = "resource"
    """Too little of a resource is free: `in_use` of `of` are used, some of it by `tasks`."""
    RESERVED = "reserved"
    """The free capacity is reserved for the task `subject`."""
    WILL_RESERVE = "will_reserve"
    """The next claim will reserve the free capacity for the task `subject`."""
    UNYIELDING = "unyielding"
    """Running tasks did not yield to a task of kind `subject`; none is asked again before `until`."""
    NOT_YET_ACCEPTED = "not_yet_accepted"
    """The node asks `can_accept` before it claims, and has no answer for this task yet."""
    REJECTED = "rejected"
    """`can_accept` has rejected the task; the node asks again at `until`."""
    BEHIND = "behind"
    """The node has free capacity, and other tasks precede this one."""


SHARED: Final = frozenset({Why.PAUSED, Why.LIMIT, Why.SERVER, Why.BACKED_OFF, Why.REMOVED, Why.NO_SERVERS})
"""Causes that hold on all nodes."""

NEVER: Final = frozenset({Why.LABEL_MISSING, Why.LABEL_FORBIDDEN, Why.TOO_SMALL})
"""Causes for which a node can never run the task, unless it is restarted with other labels or resources."""


class Cause(Record, frozen=True, kw_only=True):
    """One cause for which a task waits. `why` decides which fields are used."""

    why: Why
    subject: str = ""
    """The name of the queue, limit, provider, server, resource, label or error type, or the id of the group or task."""
    in_use: float | None = None
    of: float | None = None
    needed: float | None = None
    """The amount of the resource that the task needs; memory in bytes."""
    tasks: tuple[int, ...] = ()
    """Some of the tasks that use the resource."""
    since: datetime | None = None
    until: datetime | None = None


class NodeOutlook(Record, frozen=True, kw_only=True):
    """What one node can do with the task."""

    id: str
    name: str
    can_start: bool
    """The node's next claim takes the task."""
    causes: tuple[Cause, ...] = ()
    """Why the node does not start the task, including causes that all nodes share."""
    will_reserve: bool = False
    """The task does not fit, and the next claim reserves capacity for it; of several nodes, the first that claims."""
    age: float = 0.0
    """The age of the node's status in seconds; 0 for the node of this process."""


class Explanation(Record, frozen=True, kw_only=True):
    """Why a task waits, or how it ended."""

    id: int
    kind: str
    state: State
    sentence: str
    causes: tuple[Cause, ...] = ()
    """The causes that hold on all nodes."""
    nodes: tuple[NodeOutlook, ...] = ()
    """The nodes that know the kind. Empty unless the task is `ready`, or none of them can ever run it."""
    position: int | None = None
    """The position among the waiting or ready tasks of its kind and key queue, from 1, exact up to 1000; 1001 means
    any later position. None in other states."""
    reserved_by: str | None = None
    """The id of the live node that has reserved capacity for the task."""

    def __str__(self) -> str:
        return self.sentence

    @property
    def can_start_on(self) -> tuple[NodeOutlook, ...]:
        """The nodes whose next claim takes the task."""
        return tuple(node for node in self.nodes if node.can_start)
