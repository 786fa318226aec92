"""The session: the port between the rules in `stores.rules` and the stores.

A session is one transaction of a store. Rules are coroutines over it and contain no SQL. Each store implements these
primitives with its own statements or tables, in its modules `*_rows.py`. A primitive reads or changes rows and decides
nothing.

In SQLite and in memory no primitive awaits anything, so a rule runs to its end without suspending (`drive`). In
PostgreSQL other transactions run concurrently: `session.locks` locks rows in the lock order. In the other stores it
does nothing, because there is one writer at a time. A rule calls its locks first, then reads, then writes.

Moments and delays are in microseconds. Moments are those of the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

from synergon.model.claims import Claim, ClaimRequest, KindRequest
from synergon.model.lifecycle import Reason, State
from synergon.model.limits import NewLimit, NewProvider
from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.outcomes import ErrorRecord, FencedOutcome, Progress
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.rows import (
    ChangedTask,
    ClaimableGroups,
    FinalTask,
    FinishedClaim,
    GroupCount,
    GroupRow,
    KeyHolder,
    KeyName,
    KeyQueueCounts,
    KeyQueueLimit,
    KeyQueueName,
    KeyQueueTotal,
    LimitRow,
    LiveTask,
    PermitCount,
    RateState,
    ScheduleRow,
    ServerHealth,
    ServerName,
    ServerRow,
    SharedLimits,
    UsedServer,
)
from synergon.stores.rules.claim_plan import ReadyGroupName, ReadyTask, Taken
from synergon.stores.rules.shared_capacity import HeldPermits

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
    """The key queues and groups whose tasks a rule has moved. At the end of the rule,
    `rules.follow_ups.apply_follow_ups` handles each of them once, even if many of its tasks were moved."""

    __slots__ = ("groups", "key_queues", "released")

    def __init__(self) -> None:
        self.key_queues: set[KeyQueueName] = set()
        self.groups: set[int] = set()
        self.released: list[str] = []
        """The kinds of the tasks that were released because the last `apply_follow_ups` ended their group."""

    def __bool__(self) -> bool:
        return bool(self.key_queues or self.groups)

    def add(self, kind: str, limit_key: str | None, group_id: int | None = None) -> None:
        """Note that a task of this key queue and this group was moved."""
        if limit_key is not None:
            self.key_queues.add((kind, limit_key))
        if group_id is not None:
            self.groups.add(group_id)


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


NO_RESULTS: Final[Mapping[int, bytes | None]] = MappingProxyType({})


class Locks(Protocol):
    """Locks rows in the lock order (PostgreSQL: `lock_order`). A rule calls one of these methods before it reads."""

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
        """Lock these groups: until the transaction ends, no other one adds tasks to them or ends them."""

    async def all_key_queues(self) -> None:
        """Lock the key queues of every kind that has a limit `key:<kind>`."""


class NoLocks:
    """Locks of a store with one writer at a time. All methods do nothing."""

    async def for_outcomes(self, outcomes: Sequence[FencedOutcome]) -> None:
        """Does nothing."""

    async def for_new_tasks(self, tasks: Sequence[NewTask]) -> None:
        """Does nothing."""

    async def for_tasks(self, ids: Sequence[int]) -> None:
        """Does nothing."""

    async def for_due_tasks(self, limit: int) -> None:
        """Does nothing."""

    async def for_dead_nodes(self, gone: Sequence[str], limit: int) -> None:
        """Does nothing."""

    async def groups(self, ids: Iterable[int]) -> None:
        """Does nothing."""

    async def all_key_queues(self) -> None:
        """Does nothing."""


class TaskRows(Protocol):
    """The rows of live tasks and of the history. Until this transaction ends, no other one changes the rows that these
    methods have read."""

    async def running(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """The running tasks with these ids."""

    async def live(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """The live tasks with these ids."""

    async def final(self, ids: Iterable[int]) -> dict[int, FinalTask]:
        """The tasks of the history with these ids."""

    async def records(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        """The tasks with these ids, live or final, as the records that users get."""

    async def finished_claims(self, ids: Iterable[int]) -> dict[int, FinishedClaim]:
        """The last finished claim of each of these tasks, live or final."""

    async def end(
        self,
        tasks: Sequence[LiveTask],
        state: State,
        reason: Reason | None,
        *,
        results: Mapping[int, bytes | None] = NO_RESULTS,
        by_owner: bool = False,
    ) -> None:
        """Move live tasks to the history with these results, and update the numbers of final tasks. `by_owner`: the
        node that claimed the tasks ends them."""

    async def release(
        self,
        task: LiveTask,
        *,
        delay: int | None = None,
        limit_key: str | None = None,
        protected_for: int = 0,
        by_owner: bool = False,
    ) -> State:
        """Move a running task to `scheduled` (with a delay), `waiting` (if it has or gets a limit key) or `ready`, and
        release its permits. `limit_key` assigns the task to another key queue; `protected_for` protects it from
        preemption for that many microseconds; `by_owner`: the node that claimed the task releases it. Returns the new
        state."""

    async def charge(
        self, task_id: int, *, attempts: int = 0, crashes: int = 0, errors: Sequence[ErrorRecord] | None = None
    ) -> None:
        """Subtract attempts from a running task, add crashes, and replace its list of errors."""

    async def set_owner_deaths(self, task_id: int, owner_deaths: int) -> None:
        """Set how many owners of a running task have died."""

    async def set_errors(self, task_id: int, errors: Sequence[ErrorRecord]) -> None:
        """Replace the list of errors of a live task."""

    async def set_requirements(self, task_id: int, requirements: str) -> None:
        """Replace the text of the requirements of a live task."""

    async def report(self, task_id: int, claim_no: int, progress: Progress | None, *, is_overdue: bool) -> bool:
        """Write the progress and overdue mark of a running attempt. False if the claim is stale."""

    async def request_cancel(self, task_id: int) -> None:
        """Mark a running task, so that its node cancels the attempt."""

    async def extend_timeout(self, task_id: int, extra: int, at_most: int) -> None:
        """Add microseconds to the timeout of a running task's attempt, up to a total of `at_most`."""

    async def set_meta(self, task: LiveTask | FinalTask, meta: bytes) -> None:
        """Replace the metadata of a task, live or final."""

    async def delete(self, task_id: int) -> None:
        """Delete a live task that is not running."""

    async def delete_final(self, task: FinalTask) -> None:
        """Delete a task from the history, and update the number of final tasks."""

    async def prune(self, state: State, age: int, limit: int) -> int:
        """Delete at most `limit` tasks of the history that ended in this state more than `age` ago, oldest first, and
        store for readers of final events how far the history is pruned. Returns the number of deleted tasks."""

    async def revive(self, task: FinalTask) -> State | None:
        """Move a task of the history back to the live tasks, due now, with attempts and result cleared. Returns the new
        state; None, without a change, if a live task holds the key of the task."""

    async def add(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks without keys, with ascending ids. The state of a task is `waiting` if it waits for a group, else
        `scheduled` if it is due later, else `waiting` if it has a limit key, else `ready`."""

    async def add_keyed(self, task: NewTask) -> Insertion | None:
        """Insert a task with a key, as `add` does. None if a live task holds the key."""

    async def replace(self, holder: KeyHolder, task: NewTask) -> State:
        """Write a new task into the row of a live task that does not run; id, key and group remain. Returns the state,
        which is chosen as in `add`."""

    async def key_holder(self, kind: str, key: str) -> KeyHolder | None:
        """The live task of the kind that holds the key. None if there is none."""

    async def key_holders(self, names: Collection[KeyName]) -> dict[KeyName, KeyHolder]:
        """The live tasks that hold these keys. A key that no live task holds is missing."""

    async def reschedule(self, task_id: int, run_at: int | None, delay: int | None) -> ChangedTask | None:
        """Change when a scheduled or ready task is due. None if it is in another state."""

    async def set_priority(self, task_id: int, priority: int) -> ChangedTask | None:
        """Change the priority of a task that is live, not running and not a command. None for any other task."""

    async def expired(self, limit: int) -> list[LiveTask]:
        """Expired tasks that are not ended yet, earliest expiry first. The caller ends all of them."""

    async def make_due_ready(self, limit: int) -> list[ChangedTask]:
        """Move due tasks from `scheduled` to `waiting` (if they have a limit key) or `ready`."""

    async def next_due_in(self) -> int | None:
        """Microseconds until the next task is due or expires, or a server's back-off ends. None if there is no such
        moment."""

    async def orphans(self, dead: Collection[str], limit: int) -> list[LiveTask]:
        """Running tasks of these nodes, and of nodes that are not registered, by ascending id."""


class KeyQueueRows(Protocol):
    """The tasks and rates of key queues."""

    async def limits(self, kinds: Collection[str]) -> dict[str, KeyQueueLimit]:
        """Lock the key queues of these kinds, and read their limits. A kind without a limit gets `KeyQueueLimit()`."""

    async def counts(self, names: Sequence[KeyQueueName], few: int) -> list[KeyQueueCounts]:
        """Count the running and ready tasks of these key queues, and read the first `few` waiting ones of each."""

    async def first_waiting(self, name: KeyQueueName, limit: int) -> list[int]:
        """The first waiting tasks in claim order, except those of paused queues."""

    async def excess(self, name: KeyQueueName, allowed: int) -> list[int]:
        """The ready tasks that are not among the first `allowed` ready and waiting tasks in claim order. Tasks of
        paused queues do not count towards `allowed`."""

    async def promote(self, ids: Sequence[int]) -> Sequence[int]:
        """Move tasks from `waiting` to `ready`. Returns the tasks that were moved."""

    async def promote_all(self, names: Sequence[KeyQueueName]) -> list[ChangedTask]:
        """Move all waiting tasks of these key queues to `ready`."""

    async def demote(self, ids: Sequence[int]) -> list[ChangedTask]:
        """Move tasks from `ready` to `waiting`. Returns the moved tasks, without those that a concurrent claim has
        taken."""

    async def rates(self, names: Sequence[KeyQueueName]) -> list[RateState]:
        """Read the stored rates of these key queues, and when their scheduled tasks are due."""

    async def queue_due(self, name: KeyQueueName, now: int) -> list[ChangedTask]:
        """Move due tasks of the key queue from `scheduled` to `waiting`."""

    async def postpone(self, moments: Mapping[int, int]) -> list[ChangedTask]:
        """Move tasks from `waiting` to `scheduled`, due at these moments."""

    async def set_next_starts(self, moments: Mapping[KeyQueueName, int]) -> None:
        """Store from which moment the next start of each key queue is within its rate."""

    async def of_kind(self, kind: str) -> list[KeyQueueName]:
        """The key queues of a kind that have ready or waiting tasks."""

    async def of_queue(self, queue: str) -> list[KeyQueueName]:
        """The key queues that have ready or waiting tasks in a queue."""

    async def prune_rates(self, limit: int) -> None:
        """Delete at most `limit` stored rates whose moment has passed: they delay no start."""


class GroupRows(Protocol):
    """The rows of groups."""

    async def add(self, name: str) -> int:
        """Insert a group. Returns its id."""

    async def set_then(self, group_id: int, task_id: int) -> None:
        """Store which task follows the group."""

    async def open(self, ids: Iterable[int]) -> set[int]:
        """The groups of this list that have not ended."""

    async def end_empty(self, ids: Iterable[int]) -> list[int]:
        """End the groups of this list that have no live task. Returns those that had not ended before."""

    async def release_followers(self, ids: Sequence[int]) -> list[ChangedTask]:
        """Move the tasks that waited for these groups to `scheduled`, `waiting` or `ready`, by due time and limit
        key."""

    async def live_tasks(self, group_id: int) -> list[int]:
        """The live tasks of a group."""

    async def read(self, ids: Sequence[int]) -> list[GroupRow]:
        """The rows of these groups."""

    async def counts(self, ids: Sequence[int]) -> list[GroupCount]:
        """How many tasks of these groups, live or final, are in each state."""

    async def prune(self, age: int, limit: int) -> None:
        """Delete at most `limit` groups that ended longer than `age` ago and have no task left, live or final; the task
        that follows a group counts as one of them."""


class QueueRows(Protocol):
    """The rows of queues."""

    async def pause(self, queue: str) -> bool:
        """Pause a queue, and insert it if it is new. False if it was paused already."""

    async def resume(self, queue: str) -> bool:
        """Resume a queue. False if it was not paused, or does not exist."""


class NodeRows(Protocol):
    """The rows of nodes, with their leases."""

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

    async def delete_idle(self, dead: Collection[str]) -> None:
        """Delete the nodes of this list that hold no running task."""


class ReadyRows(Protocol):
    """Ready tasks, as a claim reads and takes them.

    Methods return tasks of the request's queues that are not paused, and commands of every queue. Expired tasks are
    excluded. The request's patience and node decide `ReadyTask.may_reserve`.
    """

    @property
    def reads_ahead(self) -> int:
        """How many tasks of each ready group a claim reads together with the held permits, before it is known how many
        it may take. 0 in stores where a second read costs no round trip."""

    async def groups(self, request: ClaimRequest) -> ClaimableGroups:
        """Read the lease of the node, and the ready groups of the requested kinds, including those of commands."""

    async def lock_limits(self, kinds: Sequence[KindRequest]) -> SharedLimits:
        """Lock and read the limits, servers and rates that tasks of these kinds need. Until the transaction ends, no
        other claim takes permits of them."""

    async def held_permits(
        self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]
    ) -> tuple[list[HeldPermits], list[ReadyTask]]:
        """Read the permits that running tasks hold, and the tasks that `first` returns for these groups."""

    async def first(self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]) -> list[ReadyTask]:
        """The first tasks of each ready group in claim order, at most the given number of each."""

    async def commands(
        self, request: ClaimRequest, kinds: Sequence[KindRequest], servers: Mapping[str, Sequence[str]], limit: int
    ) -> list[ReadyTask]:
        """The first commands of each kind: those that any server may run, and those for each of the given servers."""

    async def among(self, request: ClaimRequest, ids: Collection[int]) -> list[ReadyTask]:
        """The tasks of this list that are ready."""

    async def take(self, node_id: str, taken: Sequence[Taken]) -> list[Claim]:
        """Claim tasks: move them from `ready` to `running`, if they are unchanged since they were read and the node may
        claim. Returns the claims. The methods above do not return again the tasks that a concurrent claim has taken."""

    async def is_cordoned(self, node_id: str) -> bool | None:
        """Whether the node is cordoned. None if it has no live lease."""

    async def reserve(self, request: ClaimRequest, task: ReadyTask) -> bool:
        """Reserve capacity of the node for a task, or renew the reservation. False if the task has changed since it was
        read, or another live node has reserved capacity for it."""

    async def release_reservation(self, task_id: int, node_id: str) -> None:
        """Delete the node's reservation for the task."""


class AuditRows(Protocol):
    """The rows of the audit: operator actions and their outcomes."""

    async def add(self, action: NewAction, outcome: str | None) -> AuditRecord:
        """Insert an operator action. An outcome of None means that the named node will report it."""

    async def set_outcome(self, action_id: int, outcome: str) -> bool:
        """Write the outcome that a node reports for an action. False if the action has an outcome or does not exist."""

    async def latest(self, limit: int) -> list[AuditRecord]:
        """The latest actions, newest first."""

    async def open(self, node_id: str, limit: int) -> list[AuditRecord]:
        """The actions whose outcome this node has yet to report, oldest first."""

    async def prune(self, age: int, limit: int) -> None:
        """Of the oldest `limit` actions, delete those older than `age` microseconds."""


class LimitRows(Protocol):
    """The rows of limits. Each stores the last declaration as JSON beside the current value, which an operator may have
    changed."""

    async def declared(self, names: Iterable[str]) -> dict[str, str]:
        """The last declaration of each of these limits, as JSON, without limits that do not exist."""

    async def exclude_unlimited(self) -> None:
        """Called before a kind gets its first limit `key:<kind>`. Waits for transactions that read the kind's limit as
        missing, and blocks new ones that read it."""

    async def declare(self, limit: NewLimit, declared: str) -> bool:
        """Insert a limit, or replace its value and rate. False if a concurrent transaction has stored this
        declaration."""

    async def set_value(self, name: str, value: int | None) -> bool:
        """Change the value of a limit. False if there is none with this name."""

    async def all(self) -> list[LimitRow]:
        """All limits, by name."""

    async def held(self) -> list[PermitCount]:
        """The permits that running tasks hold, with their numbers."""

    async def key_queue_totals(self) -> list[KeyQueueTotal]:
        """The numbers of running and waiting tasks in key queues, by kind."""


class ServerRows(Protocol):
    """The rows of providers and servers, with the health of servers."""

    async def declared(self, providers: Iterable[str]) -> dict[str, str]:
        """The last declaration of each of these providers, as JSON, without providers that do not exist."""

    async def declare(self, provider: NewProvider, declared: str) -> bool:
        """Insert a provider, or replace its back-off; its servers do not change. False if a concurrent transaction has
        stored this declaration."""

    async def lock_provider(self, provider: str) -> bool:
        """Lock a provider. False if there is none with this name."""

    async def replace(self, provider: str, capacities: Mapping[str, int | None]) -> None:
        """Replace the servers of a provider. A server whose address remains retains its health."""

    async def commands_without_server(self, provider: str, addresses: Collection[str]) -> dict[int, str]:
        """The commands of the provider that are for a server outside this pool: the address of that server, by command
        id."""

    async def lock_health(
        self, servers: Collection[ServerName], failed: Collection[ServerName]
    ) -> dict[ServerName, ServerHealth]:
        """Lock the servers whose health these outcomes may change (those in `failed`, and those of `servers` that are
        unhealthy), and read their health. A server that was removed from its pool is missing from the result."""

    async def set_health(self, server: ServerName, failures: int, backoffs: int, backs_off_until: int | None) -> None:
        """Write the health of a server."""

    async def all(self) -> list[ServerRow]:
        """All servers of all pools."""

    async def used(self) -> list[UsedServer]:
        """The servers that tasks run on, with the numbers of those tasks."""


class ScheduleRows(Protocol):
    """The rows of schedules. No other transaction changes rows that `due` or `locked` returned before this one ends."""

    async def add(self, row: ScheduleRow) -> bool:
        """Insert a schedule. False if there is one with this name."""

    async def due(self, now: int, declared: Collection[str], limit: int) -> list[ScheduleRow]:
        """Lock and read the first schedules that are due, except those that another transaction has locked. Of those
        that are declared in code, only the named ones."""

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
        """When the next schedule is due. Of those that are declared in code, only the named ones count."""

    async def live_tasks(self, ids: Collection[int]) -> set[int]:
        """Those of these tasks that have not ended. Their rows are not locked."""


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
    def key_queues(self) -> KeyQueueRows:
        """The rows of key queues."""

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
    def servers(self) -> ServerRows:
        """The rows of providers and servers."""

    @property
    def schedules(self) -> ScheduleRows:
        """The rows of schedules."""

    async def read_clock(self) -> int:
        """Read the store's clock."""
