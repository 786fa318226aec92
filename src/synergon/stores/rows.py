"""Typed rows: what the primitives of a session (`stores.session`) return to the rules.

The fields of a struct are the columns of the statements that read it, by name and in order (`stores.typed_rows`).
Moments and delays are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, NamedTuple

import msgspec

from synergon.model.attempts import AttemptRecord
from synergon.model.lifecycle import Reason, State
from synergon.model.limits import NewBatch, NewRate
from synergon.model.nodes import ProcessIdentity
from synergon.model.outcomes import ErrorRecord
from synergon.model.schedules import PastOccurrence
from synergon.model.task_statistics import Numbers
from synergon.stores.rules.claim_plan import ReadyGroupName
from synergon.stores.rules.rates import RateMeter
from synergon.stores.rules.shared_capacity import NO_RATES, ServerCapacity

Moment = Annotated[int, "moment"]
"""A moment of the store's clock. `stores.typed_rows` converts timestamp columns to it."""

Names = Annotated[tuple[str, ...], "names"]
"""Names in one column, separated by newlines."""

RowKey = Annotated[str, "key"]
"""The key of a row. A row whose key is not UTF-8 is left out: no statement could write it."""

CountedTasks = Annotated[tuple[tuple[str, str, State, int], ...], "counted"]
"""Queue, kind, state and number, as JSON in one column."""

KeyName = tuple[str, str]
"""The kind and the unique key of a task."""

KeyQueueName = tuple[str, str]
"""The kind and the limit key of a key queue."""

Position = tuple[int, int]
"""The position of a task in claim order: (-priority, id). As a column it is JSON: [priority, id]."""

CountName = tuple[str, str, State]
"""Queue, kind and state of counted tasks."""

TenantName = tuple[str, int, str]
"""The kind and priority of tasks, and their tenant (`fair_key`)."""

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
    is_dependent: bool
    has_dependencies: bool
    has_dependents: bool
    attempts: int
    crashes: int
    owner_deaths: int
    server_failures: int
    requirements: str
    errors: tuple[ErrorRecord, ...]
    started_at: Moment | None
    server: str | None
    ended_attempts: tuple[AttemptRecord, ...]
    batch_id: int | None


class SucceededTask(msgspec.Struct, frozen=True, gc=False):
    """A task that a primitive has moved to the history as succeeded."""

    id: int
    kind: str
    queue: str
    limit_key: str | None
    group_id: int | None
    has_dependents: bool


class FinalTask(msgspec.Struct, frozen=True):
    """The columns of a task in the history that the rules need."""

    id: int
    kind: str
    queue: str
    state: State
    key: str | None
    limit_key: str | None
    group_id: int | None
    has_dependencies: bool
    has_dependents: bool
    requirements: str
    reason: Reason | None
    claim_no: int
    attempts: int
    node_id: str | None
    server: str | None
    started_at: Moment | None
    finished_at: Moment
    ended_attempts: tuple[AttemptRecord, ...]
    fair_key: str | None = None
    overrides: bytes | None = None


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
    fair_key: str | None = None


class FairTags(NamedTuple):
    """The tags from which the next tag of a tenant is computed."""

    smallest_ready: int | None = None
    """The smallest tag of the ready tasks of the kind and priority, except those of paused queues. Each of these fields
    is None if there is no such tag."""
    smallest_paused: int | None = None
    """The smallest tag of the ready tasks of the kind and priority in paused queues."""
    largest_started: int | None = None
    """The largest tag of the live tasks of the kind and priority that are not ready: they run, or wait for a retry."""
    largest_live: int | None = None
    """The largest tag of the tenant's live tasks of the kind and priority."""


class UntaggedTask(msgspec.Struct, frozen=True):
    """A ready task with a tenant and without a tag."""

    id: int
    kind: str
    priority: int
    fair_key: str
    fair_step: int

    @property
    def tenant(self) -> TenantName:
        """The tenant of the task."""
        return self.kind, self.priority, self.fair_key


class KeyHolder(msgspec.Struct, frozen=True):
    """The live task that holds a unique key."""

    id: int
    kind: str
    key: str
    state: State
    limit_key: str | None
    has_dependencies: bool
    has_dependents: bool


class KeyHold(msgspec.Struct, frozen=True):
    """A unique key that stays taken until a moment, also if the task that has taken it ends earlier."""

    kind: str
    key: str
    task_id: int
    until: Moment


class KeyQueueLimit(NamedTuple):
    """The limit `key:<kind>`. It applies to each key queue of the kind."""

    value: int | None = None
    """How many tasks of a key queue may be ready or running in total. None means any number."""
    rate: NewRate | None = None
    batch: NewBatch | None = None
    """How the tasks of a key queue are run together. None if each runs alone."""

    @property
    def is_unlimited(self) -> bool:
        """Whether all tasks of the key queues may be ready."""
        return self.value is None and self.rate is None and self.batch is None


class NextBatch(msgspec.Struct, frozen=True, gc=False):
    """The tasks of a key queue that its next batch can have. Tasks of paused queues do not count, except ready ones."""

    kind: str
    limit_key: str
    ready: int
    """How many tasks are ready. A ready task is the leader of the next batch."""
    count: int
    """How many tasks are ready or waiting. Counted no further than the size of a batch."""
    since: Moment | None
    """When the oldest of these tasks became due, if the batch is not complete. None if there is none."""
    alarm: Moment | None
    """The stored moment at which the next batch is due. None if none is stored."""

    @property
    def name(self) -> KeyQueueName:
        """The name of the key queue."""
        return self.kind, self.limit_key


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


class DependencyRow(msgspec.Struct, frozen=True, gc=False):
    """A dependency: one task needs another. It is open until the other task has ended."""

    task_id: int
    needs_id: int
    position: int
    item: int | None
    if_fails: str
    """An `IfFails`."""
    ended_as: str | None = None
    """The final state of the needed task, or `deleted`. None while the dependency is open."""


class NeededState(msgspec.Struct, frozen=True, gc=False):
    """The state of a task that other tasks depend on."""

    id: int
    state: State


class NeededTask(msgspec.Struct, frozen=True, gc=False):
    """A dependency, with the task that is needed."""

    task_id: int
    """The dependent."""
    needs_id: int
    position: int
    item: int | None
    ended_as: str | None
    kind: str | None
    """None if the needed task does not exist any more."""
    state: State | None
    reason: Reason | None
    result: bytes | None
    """The result of the needed task, if it was asked for."""


class GroupRow(msgspec.Struct, frozen=True):
    """The row of a group or a flow."""

    id: int
    name: str
    created_at: datetime
    ended_at: datetime | None
    then_id: int | None
    is_flow: bool
    state: State | None


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


class LiveCount(msgspec.Struct, frozen=True):
    """The numbers of live tasks when they were counted last."""

    counted_at: Moment
    numbers: CountedTasks


class StatisticsRow(msgspec.Struct, frozen=True):
    """What one engine has counted for a kind and queue, in the `span` seconds from `at` on."""

    span: int
    at: Moment
    """The moment at which the span began."""
    kind: str
    queue: str
    source: str
    """The engine that has counted. Empty if the numbers of several engines were merged."""
    numbers: Numbers


class OldestReady(msgspec.Struct, frozen=True):
    """The moment since which the oldest ready task of a queue and kind has been due."""

    queue: str
    kind: str
    due_at: Moment


class KindCount(msgspec.Struct, frozen=True):
    """A number of tasks of one kind."""

    kind: str
    count: int


class QueueRow(msgspec.Struct, frozen=True):
    """The row of a queue."""

    name: str
    paused_at: datetime | None


class NodeCount(msgspec.Struct, frozen=True):
    """How many tasks run on a node."""

    node_id: str
    count: int


class NodeName(msgspec.Struct, frozen=True):
    """The name of a node, and its process."""

    id: str
    name: str
    process: ProcessIdentity | None
    """None if it cannot be read."""


class LimitRow(msgspec.Struct, frozen=True):
    """A row of a limit: its value, its rate, and, for the limit of a kind that runs in batches, the size and the wait
    of a batch."""

    name: str
    value: int | None
    per: int | None
    starts: int | None
    burst: int | None
    by_units: bool | None
    next_at: int | None
    """The moment from which the next start is within the rate (`rules.rates`). None if nothing has started; always None
    for limits of key queues, because each key queue has its own moment."""
    batch_size: int | None
    batch_wait: int | None

    @property
    def rate(self) -> NewRate | None:
        """The rate of the limit. None if it has none."""
        if self.per is None or self.starts is None or self.burst is None:
            return None
        return NewRate(per=self.per, starts=self.starts, burst=self.burst, by_units=bool(self.by_units))

    @property
    def batch(self) -> NewBatch | None:
        """The size and the wait of a batch. None if the tasks of the kind run alone."""
        if self.batch_size is None or self.batch_wait is None:
            return None
        return NewBatch(size=self.batch_size, wait=self.batch_wait)

    @property
    def of_key_queues(self) -> KeyQueueLimit:
        """The limit, as it applies to key queues."""
        return KeyQueueLimit(self.value, self.rate, self.batch)


class LockedLimitRow(LimitRow, frozen=True):
    """A limit that a transaction has locked, and the moment at which it was locked."""

    now: Moment


class PermitCount(msgspec.Struct, frozen=True):
    """How many running tasks hold permits of exactly these limits and run on the server with this address. An `address`
    of None means no server."""

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
    recent: int
    """The last outcomes, one bit each: 1 is a failure."""
    backs_off_until: Moment | None
    failed_at: Moment | None
    """When the last failure was."""
    is_probed: bool
    """Whether its provider has a probe."""


class UsedServer(msgspec.Struct, frozen=True):
    """A server that tasks run on, and how many. The server may have been removed from its pool."""

    provider: str
    address: str
    count: int


class ServerHealth(msgspec.Struct, frozen=True):
    """The health of a server, and the back-off and probe settings of its provider."""

    provider: str
    address: str
    failures: int
    """The number of failures in a row."""
    recent: int
    """The last outcomes, one bit each: 1 is a failure, and the lowest bit is the latest outcome."""
    backoffs: int
    """The number of back-offs since `recent` had no failure."""
    backs_off_until: Moment | None
    failed_at: Moment | None
    now: Moment
    backoff_after: int | None
    backoff_first: int
    backoff_cap: int
    failure_most: int | None
    failure_window: int
    probe_timeout: int | None


class SharedLimits(NamedTuple):
    """The limits and servers whose permits a claim needs. Permits that are in use are not subtracted."""

    values: dict[str, int | None]
    """The value of each limit. None means any number of permits."""
    servers: list[ServerCapacity]
    rates: Mapping[str, RateMeter] = NO_RATES
    """The rates of those limits that have one."""

    @classmethod
    def of(cls, limits: Iterable[LimitRow], servers: list[ServerCapacity], now: int) -> SharedLimits:
        """The limits and servers that these rows describe."""
        rows = list(limits)
        meters = {row.name: RateMeter(row.rate, row.next_at, now) for row in rows if row.rate is not None}
        return cls({row.name: row.value for row in rows}, servers, meters)


class ClaimableGroups(NamedTuple):
    """Whether the node may claim, and the ready groups from which it may claim."""

    is_cordoned: bool | None
    """Whether the node is cordoned. None if it has no live lease."""
    groups: list[ReadyGroupName]


class DueSchedule(msgspec.Struct, frozen=True):
    """When a schedule is due."""

    name: RowKey
    due_at: int


class ScheduleRow(msgspec.Struct, frozen=True):
    """A schedule. `next_at` is the nominal moment of the next occurrence, and the guard of every firing; `due_at` is
    when that occurrence is due."""

    name: RowKey
    definition: bytes
    """A `NewSchedule` as JSON."""
    is_declared: bool
    anchor: int
    """The first moment of the grid, for a schedule with an interval."""
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
    past: tuple[PastOccurrence, ...] = ()
    """The latest occurrences, the oldest first, as JSON."""
