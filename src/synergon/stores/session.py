"""The session: the port between the rules in `stores.rules` and the stores.

A session is one transaction of a store. Rules are coroutines over it and contain no SQL. Each store implements these
primitives with its own statements or tables, in its modules `*_rows.py`. A primitive reads or changes rows and decides
nothing. The primitives for tasks are in `task_primitives`, those for claims in `claim_primitives`, all others here.

In SQLite and in memory no primitive awaits anything, so a rule runs to its end without suspending (`drive`). In
PostgreSQL other transactions run concurrently: `session.locks` locks rows in the lock order. In the other stores it
does nothing, because there is one writer at a time. A rule calls its locks first, then reads, then writes.

Moments and delays are in microseconds. Moments are those of the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from synergon.model.lifecycle import State
from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.outcomes import FencedOutcome
from synergon.model.task_records import Counts
from synergon.model.tasks import NewTask, StoredRetention
from synergon.stores.claim_primitives import FairRows, KeyQueueRows, LimitRows, ReadyRows, ServerRows
from synergon.stores.rows import (
    ChangedTask,
    CountName,
    KeyQueueName,
    KindCount,
    LiveCount,
    LiveTask,
    NodeName,
    OldestReady,
    QueueRow,
    ScheduleRow,
    StatisticsRow,
    SucceededTask,
)
from synergon.stores.task_primitives import DependencyRows, GroupRows, KeyHoldRows, TaskRows

Result = TypeVar("Result")
Rows = TypeVar("Rows")

KEY_QUEUES_AT_ONCE: Final = 500
"""The maximum number of key queues that a rule passes to one primitive call."""

Moves = dict[int, tuple[str, State]]
"""The kind and new state of each task that a follow-up has moved, by task id."""


def drive(rule: Coroutine[Any, Any, Result]) -> Result:
    """Run a rule to its end, on a session whose primitives never suspend."""
    try:
        rule.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    rule.close()
    raise AssertionError("a rule waited on a session that never waits")


# ---------------------------------------------------------------- notes of a rule


class Touched:
    """What a rule has moved and ended. At the end of the rule, `rules.follow_ups.apply_follow_ups` handles each key
    queue and group once, even if many of its tasks were moved."""

    __slots__ = ("dependents", "doomed", "ended", "followed", "groups", "key_queues", "of_tenants")

    def __init__(self) -> None:
        self.key_queues: set[KeyQueueName] = set()
        self.groups: set[int] = set()
        self.ended: dict[int, str] = {}
        """The tasks with dependents that have ended, and how: a final state, or `deleted`."""
        self.dependents: set[int] = set()
        """Tasks that may have no open dependency any more."""
        self.doomed: set[int] = set()
        """Tasks to be cancelled because of a dependency."""
        self.of_tenants: set[int] = set()
        """Ready tasks of tenants that may have no tag."""
        self.followed: Moves = {}
        """The tasks that the last follow-ups have released or cancelled because of dependencies."""

    def __bool__(self) -> bool:
        return bool(self.key_queues or self.groups or self.ended or self.dependents or self.doomed or self.of_tenants)

    def add(self, kind: str, limit_key: str | None, group_id: int | None = None) -> None:
        """Note that a task of this key queue and this group was moved."""
        if limit_key is not None:
            self.key_queues.add((kind, limit_key))
        if group_id is not None:
            self.groups.add(group_id)

    def add_ended(self, task: LiveTask | SucceededTask, ended_as: str) -> None:
        """Note that a task has ended in this state, or was deleted."""
        # A task that waits for dependencies is not in its key queue.
        is_waiting = isinstance(task, LiveTask) and task.is_dependent
        self.add(task.kind, None if is_waiting else task.limit_key, task.group_id)
        if task.has_dependents:
            self.ended[task.id] = ended_as

    def add_changed(self, task: ChangedTask) -> None:
        """Note that a primitive has changed this task."""
        self.add(task.kind, task.limit_key)
        if task.state is State.READY and task.fair_key is not None:
            self.of_tenants.add(task.id)


# ---------------------------------------------------------------- the port


class Part(Generic[Rows]):
    """A descriptor for one part of a session (its task rows, its locks): creates the part at each access.

    A session that stored its parts would form a reference cycle with them, and its cursor or connection would be freed
    only by the garbage collector.
    """

    __slots__ = ("_create",)

    def __init__(self, create: Callable[[Any], Rows]) -> None:
        self._create = create

    def __get__(self, session: Any, _owner: type) -> Rows:
        return self._create(session)


class Locks:
    """Locks rows in the lock order. A rule calls one of these methods before it reads. Here they do nothing, for stores
    with one writer at a time. PostgreSQL overrides them (`lock_order.LockOrder`)."""

    __slots__ = ()

    async def for_outcomes(self, outcomes: Sequence[FencedOutcome]) -> None:
        """Lock the key queues, servers and groups of the tasks that these outcomes end, and of their children."""

    async def for_new_tasks(self, tasks: Sequence[NewTask]) -> None:
        """Lock the key queues and groups that these tasks join. If several of the tasks have unique keys, other
        transactions that insert several such tasks wait until this one ends."""

    async def for_tasks(self, ids: Sequence[int]) -> None:
        """Lock the key queues and groups of these tasks, live or final."""

    async def for_due_tasks(self, limit: int) -> None:
        """Lock the key queues and groups of tasks that are due or have expired."""

    async def for_dead_nodes(self, gone: Sequence[str], limit: int) -> None:
        """Lock the key queues and groups of tasks whose owner is dead."""

    async def groups(self, ids: Iterable[int]) -> None:
        """Lock these groups: until this transaction ends, no other transaction adds tasks to them or ends them."""

    async def all_key_queues(self) -> None:
        """Lock the key queues of every kind that has a limit `key:<kind>`."""

    async def statistics(self) -> None:
        """Lock the merge of statistics: no other transaction merges rows until this one ends."""


class QueueRows(Protocol):
    """The rows of queues."""

    __slots__ = ()

    async def pause(self, queue: str) -> bool:
        """Pause a queue, and insert it if it is new. False if it was paused already."""

    async def resume(self, queue: str) -> bool:
        """Resume a queue. False if it was not paused, or does not exist."""


class NodeRows(Protocol):
    """The rows of nodes, with their leases."""

    __slots__ = ()

    async def lock_lease(self, node_id: str) -> bool | None:
        """Lock a node's row. Returns whether the node's lease is live; None if the node has no row. This remains true
        until the transaction ends."""

    async def cordon(self, node_id: str) -> None:
        """Mark the node as cordoned: it may claim nothing."""

    async def uncordon(self, node_id: str) -> None:
        """Remove the cordon mark: the node may claim again."""

    async def lock_dead(self, gone: Sequence[str]) -> list[str]:
        """Lock the nodes whose lease has ended, and those of `gone`. None of them can renew until the transaction
        ends."""

    async def runners(self, kind: str, queue: str) -> list[str]:
        """The ids of the nodes with a live lease that run the kind and serve the queue."""

    async def names(self, ids: Collection[str]) -> dict[str, NodeName]:
        """The names and processes of these nodes, also of nodes that are gone. A node whose name is not stored is
        missing."""

    async def prune_names(self, age: int, limit: int) -> None:
        """Delete the names of at most `limit` nodes that have been gone for longer than `age` microseconds."""

    async def delete_idle(self, dead: Collection[str]) -> None:
        """Delete the nodes of this list that hold no running task, and keep their names."""


class AuditRows(Protocol):
    """The rows of the audit: operator actions and their outcomes."""

    __slots__ = ()

    async def add(self, action: NewAction, outcome: str | None) -> AuditRecord:
        """Insert an operator action. If `outcome` is None, the named node or an engine will report it."""

    async def may_add(self) -> bool:
        """Whether the user of the database may insert into the audit."""

    async def set_outcome(self, action_id: int, outcome: str) -> bool:
        """Write the outcome that a node reports for an action. False if the action has an outcome or does not exist."""

    async def latest(self, limit: int) -> list[AuditRecord]:
        """The latest actions, newest first."""

    async def open(self, node_id: str, limit: int) -> list[AuditRecord]:
        """The actions whose outcome this node has yet to report, oldest first."""

    async def prune(self, age: int, limit: int) -> None:
        """Of the oldest `limit` actions, delete those older than `age` microseconds."""


class RetentionRows(Protocol):
    """The retention of the store."""

    __slots__ = ()

    async def read(self) -> StoredRetention | None:
        """The retention. None if there is none yet."""

    async def locked(self) -> StoredRetention | None:
        """`read`, with a lock: no other transaction changes the retention before this one ends."""

    async def write(self, retention: StoredRetention) -> None:
        """Replace the retention."""


class StatisticsRows(Protocol):
    """The rows of statistics."""

    __slots__ = ()

    async def write(self, rows: Sequence[StatisticsRow]) -> None:
        """Insert rows, or replace the numbers of existing rows."""

    async def since(self, span: int, moment: int, kind: str | None, queue: str | None) -> list[StatisticsRow]:
        """The rows of this span that begin at the moment or later, of all kinds and queues or of the given ones."""

    async def oldest(self, span: int, before: int) -> int | None:
        """The moment of the oldest row of this span that begins earlier than `before`. None if there is none."""

    async def take(self, span: int, at: int) -> list[StatisticsRow]:
        """Delete the rows of this span and moment, and return them."""

    async def prune(self, age: int, limit: int) -> None:
        """Delete at most `limit` rows of each span that are older than `age` microseconds."""


class ScheduleRows(Protocol):
    """The rows of schedules. Until this transaction ends, no other transaction changes the rows that `due` or `locked`
    has returned."""

    __slots__ = ()

    async def add(self, row: ScheduleRow) -> bool:
        """Insert a schedule. False if there is one with this name."""

    async def due(self, declared: Collection[str], limit: int) -> list[ScheduleRow]:
        """Lock and read the first schedules that are due now, except those that another transaction has locked. Of the
        schedules that code declares, only those in `declared`."""

    async def locked(self, names: Collection[str]) -> dict[str, ScheduleRow]:
        """Lock and read the schedules with these names."""

    async def write(self, rows: Sequence[tuple[int | None, ScheduleRow]]) -> int:
        """Replace all but the name and `created_at` of each row whose `next_at` still is the given old value. Returns
        how many rows were replaced."""

    async def delete(self, name: str) -> bool:
        """Delete a schedule. False if there is none with this name."""

    async def all(self) -> list[ScheduleRow]:
        """All schedules, by name."""

    async def next_due(self, declared: Collection[str]) -> int | None:
        """When the next schedule is due. Of the schedules that code declares, only those in `declared` count. None if
        there is none."""

    async def live_tasks(self, ids: Collection[int]) -> set[int]:
        """The tasks of this list that have not ended. Their rows are not locked."""


class CountRows(Protocol):
    """The numbers of tasks."""

    is_cheap: bool
    """Whether `live` is as cheap as `first`."""

    async def live(self) -> Counts[CountName]:
        """How many live tasks there are."""

    async def first(self, limit: int) -> Counts[CountName]:
        """How many live tasks there are, if there are at most `limit`. Otherwise the sum exceeds `limit`, but may be
        too small."""

    async def final(self) -> Counts[CountName]:
        """How many final tasks there are."""

    async def stored(self) -> LiveCount | None:
        """The numbers that the last call of `store` has written. None if there are none."""

    async def store(self, row: LiveCount) -> None:
        """Write the numbers of live tasks. They replace the stored ones."""

    async def queues(self) -> list[QueueRow]:
        """All queues, by name."""

    async def oldest_ready(self) -> list[OldestReady]:
        """For each queue and kind with ready tasks, since when the oldest has been due. If tasks have several
        priorities, only the first task of the highest and the first of the lowest priority are compared. So each ready
        group costs one or two index steps."""

    async def failures(self, age: int, limit: int) -> list[KindCount]:
        """How many tasks failed at most `age` microseconds ago, by kind. Counts only the latest `limit` of them."""

    async def overdue(self) -> int:
        """How many running tasks have exceeded their timeout and do not end."""


class Session(Protocol):
    """One transaction of a store, as the rules see it."""

    touched: Touched

    @property
    def locks(self) -> Locks:
        """The locks that a rule takes first."""

    @property
    def tasks(self) -> TaskRows:
        """The rows of tasks."""

    @property
    def key_holds(self) -> KeyHoldRows:
        """The holds of unique keys."""

    @property
    def key_queues(self) -> KeyQueueRows:
        """The rows of key queues."""

    @property
    def fair(self) -> FairRows:
        """The tags of tenants."""

    @property
    def is_callers(self) -> bool:
        """Whether the transaction belongs to a caller (`conn=`). It then must not lock rows that other transactions
        wait for."""

    @property
    def dependencies(self) -> DependencyRows:
        """The dependencies between tasks."""

    @property
    def groups(self) -> GroupRows:
        """The rows of groups."""

    @property
    def queues(self) -> QueueRows:
        """The rows of queues."""

    @property
    def nodes(self) -> NodeRows:
        """The rows of nodes."""

    @property
    def ready(self) -> ReadyRows:
        """The ready tasks."""

    @property
    def audit(self) -> AuditRows:
        """The rows of the audit."""

    @property
    def limits(self) -> LimitRows:
        """The rows of limits."""

    @property
    def retention(self) -> RetentionRows:
        """The retention of the store."""

    @property
    def servers(self) -> ServerRows:
        """The rows of providers and servers."""

    @property
    def statistics(self) -> StatisticsRows:
        """The rows of statistics."""

    @property
    def schedules(self) -> ScheduleRows:
        """The rows of schedules."""

    @property
    def counts(self) -> CountRows:
        """The numbers of tasks."""

    async def read_clock(self) -> int:
        """Read the store's clock."""
