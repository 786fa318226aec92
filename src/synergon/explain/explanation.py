"""What an explanation consists of."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

from synergon.model.lifecycle import State
from synergon.model.record import Record

FARTHEST: Final = 1000
"""Positions are counted up to here."""


class Why(StrEnum):
    """What may stand in the way of a task."""

    # It is not its time yet.
    DELAYED = "delayed"
    RETRYING = "retrying"
    """It has failed and is tried again; `subject` is the error's type."""
    SNOOZED = "snoozed"
    """Its function asked to be run again later."""
    RATE = "rate"
    """The rate of its key queue lets it start later."""
    DUE = "due"
    """It is made ready at the next look of a live node."""
    EXPIRED = "expired"
    """It was not started in time, and ends at the next look of a live node."""
    KEY_QUEUE = "key_queue"
    """Others with its limit key go first; `of` may run at once."""
    GROUP = "group"
    """It starts when the group `subject` has ended; `in_use` of its tasks are open."""

    # What all nodes share.
    PAUSED = "paused"
    UNKNOWN_KIND = "unknown_kind"
    """No live node runs the kind."""
    LIMIT = "limit"
    SERVER = "server"
    BACKED_OFF = "backed_off"
    REMOVED = "removed"
    """The server that it is for is not in the pool."""
    NO_SERVERS = "no_servers"

    # What one node says.
    SILENT = "silent"
    """Its lease is over, or its process is gone."""
    NO_STATUS = "no_status"
    """It has said nothing of itself yet."""
    CORDONED = "cordoned"
    STOPPING = "stopping"
    OTHER_QUEUES = "other_queues"
    LABEL_MISSING = "label_missing"
    LABEL_FORBIDDEN = "label_forbidden"
    TOO_SMALL = "too_small"
    """The whole node has `of`, and the task needs more."""
    SLOTS = "slots"
    MAX_RUNNING = "max_running"
    PROCESSES = "processes"
    """All child processes have work: `in_use` of `of` are used, among others by `tasks`."""
    RESOURCE = "resource"
    """The same of a resource."""
    RESERVED = "reserved"
    """What is free is kept for the task `subject`."""
    WILL_RESERVE = "will_reserve"
    """From the next claim on it is."""
    UNYIELDING = "unyielding"
    """Running tasks did not yield to one of the kind `subject`; nobody is asked to before `until`."""
    NOT_YET_ACCEPTED = "not_yet_accepted"
    """It asks a function before it takes one (`can_accept`), and has not been told yes."""
    REJECTED = "rejected"
    """It has asked, and the answer was no until `until`."""
    BEHIND = "behind"
    """There is room, and other tasks get it first."""


SHARED: Final = frozenset({Why.PAUSED, Why.LIMIT, Why.SERVER, Why.BACKED_OFF, Why.REMOVED, Why.NO_SERVERS})
"""They stand in the way on every node that needs the same."""

NEVER: Final = frozenset({Why.LABEL_MISSING, Why.LABEL_FORBIDDEN, Why.TOO_SMALL})
"""While nobody changes the node, it cannot run the task."""


class Cause(Record, frozen=True, kw_only=True):
    """One thing that stands in the way. Which of the fields mean something depends on `why`."""

    why: Why
    subject: str = ""
    """What it is about: a queue, limit, server, resource, label, group, task id or type of error."""
    in_use: float | None = None
    of: float | None = None
    needed: float | None = None
    """How much of a resource the task uses; memory in bytes."""
    tasks: tuple[int, ...] = ()
    """Some of those that have what it needs."""
    since: datetime | None = None
    until: datetime | None = None


class NodeOutlook(Record, frozen=True, kw_only=True):
    """What one node could do with the task."""

    id: str
    name: str
    can_start: bool
    """Nothing stands in the way: its next claim takes the task."""
    causes: tuple[Cause, ...] = ()
    """What does, those things included that all nodes share."""
    will_reserve: bool = False
    """It does not fit, and the next claim begins to keep room for it; of several such nodes, the first that claims."""
    age: float = 0.0
    """How many seconds ago it said what this is known from; 0 for the node of this process, which was asked now."""


class Explanation(Record, frozen=True, kw_only=True):
    """Why a task waits, or what became of it."""

    id: int
    kind: str
    state: State
    sentence: str
    causes: tuple[Cause, ...] = ()
    """What stands in its way wherever it might run."""
    nodes: tuple[NodeOutlook, ...] = ()
    """The nodes that know its kind; only while it is `ready`, or if none of them could ever run it."""
    position: int | None = None
    """Its place among tasks of its kind (and line) that wait for the same, from 1 on and exact up to 1000; 1001
    stands for any place after that. None: it waits for nothing of the sort."""
    reserved_by: str | None = None
    """The id of the live node that keeps room for it."""

    def __str__(self) -> str:
        return self.sentence

    @property
    def can_start_on(self) -> tuple[NodeOutlook, ...]:
        """The nodes whose next claim takes it."""
        return tuple(node for node in self.nodes if node.can_start)
