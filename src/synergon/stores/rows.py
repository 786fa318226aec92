"""Typed rows: what the primitives of a session (`stores.session`) return to the rules.

The fields of a struct are the columns of the statements that read it, by name and in order (`stores.typed_rows`).
Moments and delays are in microseconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, NamedTuple

import msgspec

from synergon.model.lifecycle import State
from synergon.model.limits import NewRate
from synergon.model.outcomes import ErrorRecord
from synergon.stores.rules.claim_plan import ReadyGroupName
from synergon.stores.rules.shared_capacity import ServerCapacity

Moment = Annotated[int, "moment"]
"""A moment of the store's clock. `stores.typed_rows` converts timestamp columns to it."""

Names = Annotated[tuple[str, ...], "names"]
"""Names in one column, separated by newlines."""

KeyName = tuple[str, str]
"""The kind and the unique key of a task."""

KeyQueueName = tuple[str, str]
"""The kind and the limit key of a key queue."""

Position = tuple[int, int]
"""The position of a task in claim order: (-priority, id). As a column it is JSON: [priority, id]."""

ServerName = tuple[str, str]
"""The provider and the address of a server."""


class LiveTask(msgspec.Struct, frozen=True):
    """The columns of a live task that the rules need."""

    id: int
    claim_no: int
    kind: str
    queue: str
    state: State
    node_id: str | None
    cancel_requested: bool
    is_command: bool
    limit_key: str | None
    group_id: int | None
    attempts: int
    crashes: int
    owner_deaths: int
    requirements: str
    errors: tuple[ErrorRecord, ...]


class FinalTask(msgspec.Struct, frozen=True):
    """The columns of a task in the history that the rules need."""

    id: int
    kind: str
    queue: str
    state: State
    key: str | None
    limit_key: str | None
    requirements: str


class FinishedClaim(msgspec.Struct, frozen=True):
    """The last claim of a task for which an outcome was applied, and the current state of the task."""

    id: int
    claim_no: int
    state: State
    kind: str


class ChangedTask(msgspec.Struct, frozen=True, gc=False):
    """A task that a primitive has changed, and its new state."""

    id: int
    kind: str
    state: State
    limit_key: str | None
    group_id: int | None = None


class KeyHolder(msgspec.Struct, frozen=True):
    """The live task that holds a unique key."""

    id: int
    kind: str
    key: str
    state: State
    limit_key: str | None


class KeyQueueLimit(NamedTuple):
    """The limit `key:<kind>`. It applies to each key queue of the kind."""

    value: int | None = None
    """How many tasks of a key queue may be ready or running in total. None means any number."""
    rate: NewRate | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether all tasks of the key queues may be ready."""
        return self.value is None and self.rate is None


class KeyQueueCounts(msgspec.Struct, frozen=True, gc=False):
    """The numbers of running and ready tasks of a key queue, the last ready task and the first waiting ones."""

    kind: str
    limit_key: str
    running: int
    ready: int
    ready_in_paused: int
    """How many ready tasks are in paused queues, where no node may claim them."""
    last_ready: Position | None
    """The position of the ready task that comes last in claim order."""
    first_waiting: tuple[Position, ...]
    """The positions of the first few waiting tasks, in claim order, without those of paused queues."""

    @property
    def name(self) -> KeyQueueName:
        """The name of the key queue."""
        return self.kind, self.limit_key


class RateState(msgspec.Struct, frozen=True, gc=False):
    """The rate of a key queue: its stored value, and when its scheduled tasks are due."""

    kind: str
    limit_key: str
    now: Moment
    next_at: int | None
    """The moment from which the next start is within the rate (`rules.rates`). None if no value is stored."""
    is_due: bool
    """Whether a scheduled task of the key queue is due."""
    next_scheduled: Moment | None
    """When the next scheduled task of the key queue becomes due, without tasks that are due already. None if there is
    none."""


class GroupRow(msgspec.Struct, frozen=True):
    """The row of a group."""

    id: int
    name: str
    created_at: datetime
    ended_at: datetime | None
    then_id: int | None


class GroupCount(msgspec.Struct, frozen=True):
    """How many tasks of a group are in one state."""

    group_id: int
    state: State
    count: int


class TaskCount(msgspec.Struct, frozen=True):
    """How many tasks of a queue and kind are in one state."""

    queue: str
    kind: str
    state: State
    count: int


class QueueRow(msgspec.Struct, frozen=True):
    """The row of a queue."""

    name: str
    paused_at: datetime | None


class NodeCount(msgspec.Struct, frozen=True):
    """How many tasks run on a node."""

    node_id: str
    count: int


class LimitRow(msgspec.Struct, frozen=True):
    """The current value and rate of a limit."""

    name: str
    value: int | None
    every: int | None
    burst: int | None


class PermitCount(msgspec.Struct, frozen=True):
    """How many running tasks hold permits of exactly these limits and run on a server with this address (None: on no
    server)."""

    limits: Names
    address: str | None
    count: int


class KeyQueueTotal(msgspec.Struct, frozen=True):
    """The number of tasks in one state, over all key queues of a kind."""

    kind: str
    state: State
    count: int


class ServerRow(msgspec.Struct, frozen=True):
    """A server of a pool."""

    provider: str
    address: str
    capacity: int | None
    failures: int
    backs_off_until: Moment | None


class UsedServer(msgspec.Struct, frozen=True):
    """A server that tasks run on, and how many. The server may have been removed from its pool."""

    provider: str
    address: str
    count: int


class ServerHealth(msgspec.Struct, frozen=True):
    """The health of a server, and the back-off that its provider declares."""

    provider: str
    address: str
    failures: int
    """The number of failures in a row."""
    backoffs: int
    """The number of back-offs since the last success."""
    backs_off_until: Moment | None
    now: Moment
    backoff_after: int | None
    backoff_first: int
    backoff_cap: int


class SharedLimits(NamedTuple):
    """The limits and servers of which a claim needs permits. Permits that are in use are not subtracted."""

    values: dict[str, int | None]
    """The value of each limit. None means any number of permits."""
    servers: list[ServerCapacity]


class ClaimableGroups(NamedTuple):
    """Whether the node may claim, and the ready groups from which it may claim."""

    is_cordoned: bool | None
    """Whether the node is cordoned. None if it has no live lease."""
    groups: list[ReadyGroupName]


class ScheduleRow(msgspec.Struct, frozen=True):
    """A schedule. `next_at` is the nominal moment of the next occurrence, and the guard of every firing; `due_at` is
    when that occurrence is due."""

    name: str
    definition: bytes
    """A `NewSchedule` as JSON."""
    is_declared: bool
    anchor: int
    """Where the grid of an interval starts."""
    created_at: int
    next_at: int | None
    due_at: int | None
    paused_at: int | None = None
    last_task_id: int | None = None
    last_at: int | None = None
    fired: int = 0
    missed: int = 0
    skipped: int = 0
    skips_in_row: int = 0
    skipped_since: int | None = None
    reason: str | None = None
    reason_at: int | None = None
