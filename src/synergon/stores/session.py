"""The session: the port that the rules in `stores.rules` are written on.

A session is one transaction of a store. Rules are coroutines over it and contain no SQL; each store implements these
primitives with its own statements or tables. A primitive reads or changes rows and decides nothing.

On SQLite and in memory no primitive ever waits, so a rule runs to its end at once (`drive`). On PostgreSQL other
transactions run beside it: `session.locks` locks rows in the one lock order, and does nothing in the other stores,
where one writer excludes the others. A rule calls its locks first, then reads, then writes.

Moments and delays are microseconds. Moments are those of the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from synergon.model.claims import Claim, ClaimRequest, KindRequest
from synergon.model.lifecycle import Reason, State
from synergon.model.limits import NewLimit, NewProvider, NewRate
from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.outcomes import ErrorRecord, FencedOutcome, Progress
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.rules.claim_plan import ReadyGroupName, ReadyTask, Taken
from synergon.stores.rules.shared_capacity import HeldPermits, ServerCapacity

Result = TypeVar("Result")
Rows = TypeVar("Rows")

Moment = Annotated[int, "moment"]
"""A moment of the store's clock; a column that holds a timestamp becomes one (`stores.typed_rows`)."""

Names = Annotated[tuple[str, ...], "names"]
"""Names in one column, one in each line."""

KeyName = tuple[str, str]
"""Kind and unique key."""

KeyQueueName = tuple[str, str]
"""Kind and limit key."""

KEY_QUEUES_AT_ONCE: Final = 500
"""How many key queues a primitive is given at the most."""

Position = tuple[int, int]
"""Where a task is in claim order: (-priority, id). A column has it as JSON, [priority, id]."""

ServerName = tuple[str, str]
"""Provider and address."""

Moves = dict[int, tuple[str, State]]
"""Tasks that a follow-up has moved, by id: their kind and their new state."""


def drive(rule: Coroutine[Any, Any, Result]) -> Result:
    """Run a rule on a session that never waits."""
    try:
        rule.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    rule.close()
    raise AssertionError("a rule waited on a session that never waits")


# ---------------------------------------------------------------- rows


class LiveTask(msgspec.Struct, frozen=True):
    """A live task's row, as far as the rules need it."""

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
    errors: tuple[ErrorRecord, ...]


class FinalTask(msgspec.Struct, frozen=True):
    """A row of the history, as far as the rules need it."""

    id: int
    kind: str
    queue: str
    state: State
    key: str | None
    limit_key: str | None


class FinishedClaim(msgspec.Struct, frozen=True):
    """The last claim of a task that its owner has finished, and the state that the task is in now."""

    id: int
    claim_no: int
    state: State
    kind: str


class ChangedTask(msgspec.Struct, frozen=True, gc=False):
    """A task that a primitive has changed, and its state afterwards."""

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
    """What the limit `key:<kind>` allows for each key queue of the kind."""

    value: int | None = None
    """How many tasks may be ready or running; None: any number."""
    rate: NewRate | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether every task of the key queues may be ready."""
        return self.value is None and self.rate is None


class KeyQueueCounts(msgspec.Struct, frozen=True, gc=False):
    """How many tasks of a key queue run and are ready, and the tasks at the border between ready and waiting."""

    kind: str
    limit_key: str
    running: int
    ready: int
    ready_in_paused: int
    """How many of the ready tasks are in paused queues, where no node may claim them."""
    last_ready: Position | None
    """The position of the ready task that comes last in claim order."""
    first_waiting: tuple[Position, ...]
    """The positions of the first few waiting tasks, in claim order, without those of paused queues."""

    @property
    def name(self) -> KeyQueueName:
        """The key queue."""
        return self.kind, self.limit_key


class RateState(msgspec.Struct, frozen=True, gc=False):
    """What a store remembers of the rate of a key queue."""

    kind: str
    limit_key: str
    now: Moment
    next_at: int | None
    """What the rate remembers of earlier starts (`rules.rates`); None: there were none."""
    is_due: bool
    """Whether a scheduled task of the key queue is due."""
    next_scheduled: Moment | None
    """When the next scheduled task of the key queue that is not due yet will be."""


class DeadNode(msgspec.Struct, frozen=True):
    """A node whose lease has ended."""

    id: str
    is_stopping: bool
    """It had announced that it stops."""


class LimitRow(msgspec.Struct, frozen=True):
    """A limit as it is now."""

    name: str
    value: int | None
    every: int | None
    burst: int | None


class PermitCount(msgspec.Struct, frozen=True):
    """How many running tasks hold permits of exactly these limits, and run on a server of this address."""

    limits: Names
    address: str | None
    count: int


class KeyQueueTotal(msgspec.Struct, frozen=True):
    """How many tasks are in a state, over all key queues of a kind."""

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
    """How many tasks run on a server, which may have left its pool."""

    provider: str
    address: str
    count: int


class ServerHealth(msgspec.Struct, frozen=True):
    """How a server fares, and the back-off that its provider declares."""

    provider: str
    address: str
    failures: int
    """In a row."""
    backoffs: int
    """Without a success since."""
    backs_off_until: Moment | None
    now: Moment
    backoff_after: int | None
    backoff_first: int
    backoff_cap: int


class SharedLimits(NamedTuple):
    """The limits and servers that a claim needs permits of. What running tasks hold of them is not counted yet."""

    values: dict[str, int | None]
    """How many permits each limit has; None: any number."""
    servers: list[ServerCapacity]


class ClaimableGroups(NamedTuple):
    """What a node may claim from."""

    is_cordoned: bool | None
    """None: the node has no live lease."""
    groups: list[ReadyGroupName]


# ---------------------------------------------------------------- what a rule notes while it runs


class Touched:
    """The key queues and groups whose tasks a rule has moved. `rules.follow_ups.draw` puts them in order once, at the
    end: a batch that touches a key queue many times balances it once."""

    __slots__ = ("groups", "key_queues", "released")

    def __init__(self) -> None:
        self.key_queues: set[KeyQueueName] = set()
        self.groups: set[int] = set()
        self.released: list[str] = []
        """The kinds of tasks that waited for a group which the last `draw` has ended."""

    def __bool__(self) -> bool:
        return bool(self.key_queues or self.groups)

    def add(self, kind: str, limit_key: str | None, group_id: int | None = None) -> None:
        """Note a task of this key queue and this group."""
        if limit_key is not None:
            self.key_queues.add((kind, limit_key))
        if group_id is not None:
            self.groups.add(group_id)


# ---------------------------------------------------------------- the port


class Part(Generic[Rows]):
    """An attribute of a session class: a part of the session, made each time it is asked for.

    A session that kept its parts, which know it, would be a circle: the garbage collector would free it some time
    later, and a cursor or a connection with it.
    """

    __slots__ = ("_create",)

    def __init__(self, create: Callable[[Any], Rows]) -> None:
        self._create = create

    def __get__(self, session: Any, _owner: type) -> Rows:
        return self._create(session)


NO_RESULTS: Final[Mapping[int, bytes | None]] = MappingProxyType({})


class Locks(Protocol):
    """Locks rows in the one lock order (PostgreSQL: `lock_order`). A rule calls one of these before it reads."""

    async def for_outcomes(self, outcomes: Sequence[FencedOutcome]) -> None:
        """Lock the key queues, servers and groups that these outcomes and their children concern."""

    async def for_new_tasks(self, tasks: Sequence[NewTask]) -> None:
        """Lock the key queues and groups that these tasks join, and keep other lists of unique keys out."""

    async def for_tasks(self, ids: Sequence[int]) -> None:
        """Lock the key queues and groups of these tasks, live or final."""

    async def for_due_tasks(self, limit: int) -> None:
        """Lock the key queues and groups of tasks that are due or have expired."""

    async def for_dead_nodes(self, gone: Sequence[str], limit: int) -> None:
        """Lock the key queues and groups of tasks whose owner is dead."""

    async def groups(self, ids: Iterable[int]) -> None:
        """Lock these groups, so that no task joins or ends them meanwhile."""

    async def all_key_queues(self) -> None:
        """Lock the key queues of every kind that has a limit for them."""


class NoLocks:
    """The locks of a store where one writer excludes the others: there is nothing to lock."""

    async def for_outcomes(self, outcomes: Sequence[FencedOutcome]) -> None:
        """Nothing to lock."""

    async def for_new_tasks(self, tasks: Sequence[NewTask]) -> None:
        """Nothing to lock."""

    async def for_tasks(self, ids: Sequence[int]) -> None:
        """Nothing to lock."""

    async def for_due_tasks(self, limit: int) -> None:
        """Nothing to lock."""

    async def for_dead_nodes(self, gone: Sequence[str], limit: int) -> None:
        """Nothing to lock."""

    async def groups(self, ids: Iterable[int]) -> None:
        """Nothing to lock."""

    async def all_key_queues(self) -> None:
        """Nothing to lock."""


class TaskRows(Protocol):
    """Rows of live tasks and of the history. Rows that are read here stay as they are until the transaction ends, or
    until this transaction changes them."""

    async def running(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """Those of these tasks that run."""

    async def live(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        """Those of these tasks that are live."""

    async def final(self, ids: Iterable[int]) -> dict[int, FinalTask]:
        """Those of these tasks that are in the history."""

    async def finished_claims(self, ids: Iterable[int]) -> dict[int, FinishedClaim]:
        """The last finished claims of these tasks, live or final."""

    async def end(
        self,
        tasks: Sequence[LiveTask],
        state: State,
        reason: Reason | None,
        *,
        results: Mapping[int, bytes | None] = NO_RESULTS,
        by_owner: bool = False,
    ) -> None:
        """Move live tasks to the history, with these results, and count them; `by_owner`: the node that claimed them
        ended them."""

    async def release(
        self,
        task: LiveTask,
        *,
        delay: int | None = None,
        limit_key: str | None = None,
        protected_for: int = 0,
        by_owner: bool = False,
    ) -> State:
        """Move a running task to `scheduled` (if it has a delay), `waiting` (if it has a limit key) or `ready`; its new
        state. `limit_key` assigns it to another key queue. Its permits are free from here on."""

    async def charge(
        self, task_id: int, *, attempts: int = 0, crashes: int = 0, errors: Sequence[ErrorRecord] | None = None
    ) -> None:
        """Give a number of attempts back to a running task, count a number of crashes, and replace its list of
        errors."""

    async def set_errors(self, task_id: int, errors: Sequence[ErrorRecord]) -> None:
        """Replace the list of errors of a live task."""

    async def report(self, task_id: int, claim_no: int, progress: Progress | None, *, is_overdue: bool) -> bool:
        """Write progress and the overdue mark of a running attempt; False: the claim is no longer the current one."""

    async def request_cancel(self, task_id: int) -> None:
        """Mark a running task, so that its node cancels the attempt."""

    async def delete(self, task_id: int) -> None:
        """Delete a live task that is not running."""

    async def delete_final(self, task: FinalTask) -> None:
        """Delete a row of the history, and count it no longer."""

    async def prune(self, state: State, age: int, limit: int) -> int:
        """Delete at most `limit` rows of the history that ended in this state and are older than this, and note for
        readers of final events how far they are gone; how many. The oldest go first."""

    async def revive(self, task: FinalTask) -> State | None:
        """Move a row of the history to the live tasks, due now and as if it had never run; its new state. None: a live
        task holds its key, and nothing was changed."""

    async def add(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks without keys; their ids ascend. A task is `waiting` if it waits for a group, else `scheduled` if
        it is due later, else `waiting` if it has a limit key, else `ready`."""

    async def add_keyed(self, task: NewTask) -> Insertion | None:
        """Insert a task with a key, as `add` does. None: a live task holds the key."""

    async def replace(self, holder: KeyHolder, task: NewTask) -> State:
        """Replace a live task that does not run by a new one, which keeps its id, its key and its group; the state that
        `add` would give it."""

    async def key_holder(self, kind: str, key: str) -> KeyHolder | None:
        """The live task that holds a key."""

    async def key_holders(self, names: Collection[KeyName]) -> dict[KeyName, KeyHolder]:
        """The live tasks that hold these keys."""

    async def reschedule(self, task_id: int, run_at: int | None, delay: int | None) -> ChangedTask | None:
        """Change when a scheduled or ready task is due. None: it is in neither state."""

    async def set_priority(self, task_id: int, priority: int) -> ChangedTask | None:
        """Change the priority of a task that is live, not running and not a command. None: it is not such a task."""

    async def expired(self, limit: int) -> list[LiveTask]:
        """Tasks whose time to start is over, in the order of these moments; they are still in their states, and the
        caller ends all of them."""

    async def make_due_ready(self, limit: int) -> list[ChangedTask]:
        """Move due tasks from `scheduled` to `waiting` (if they have a limit key) or `ready`."""

    async def next_due_in(self) -> int | None:
        """Microseconds until the next task is due or expires, or a server's back-off ends; None: never."""

    async def orphans(self, dead: Collection[str], limit: int) -> list[LiveTask]:
        """Running tasks of these nodes, and of nodes that are not registered, in the order of ids."""


class KeyQueueRows(Protocol):
    """Tasks by key queue, and the rates of key queues."""

    async def limits(self, kinds: Collection[str]) -> dict[str, KeyQueueLimit]:
        """Lock the key queues of these kinds, and read their limits; `KeyQueueLimit()` for a kind without one."""

    async def counts(self, names: Sequence[KeyQueueName], few: int) -> list[KeyQueueCounts]:
        """Count these key queues; `few` is how many of their waiting tasks are read."""

    async def first_waiting(self, name: KeyQueueName, limit: int) -> list[int]:
        """The first waiting tasks in claim order, without those of paused queues."""

    async def excess(self, name: KeyQueueName, allowed: int) -> list[int]:
        """The ready tasks that are not among the first `allowed` ready and waiting tasks in claim order. Tasks of
        paused queues are not counted among these."""

    async def promote(self, ids: Sequence[int]) -> Sequence[int]:
        """`waiting` → `ready`; the tasks that were moved."""

    async def promote_all(self, names: Sequence[KeyQueueName]) -> list[ChangedTask]:
        """All waiting tasks of these key queues → `ready`."""

    async def demote(self, ids: Sequence[int]) -> list[ChangedTask]:
        """`ready` → `waiting`; the tasks that were moved: a claim on another connection may have been quicker."""

    async def rates(self, names: Sequence[KeyQueueName]) -> list[RateState]:
        """What is remembered of the rates of these key queues."""

    async def queue_due(self, name: KeyQueueName, now: int) -> list[ChangedTask]:
        """Scheduled tasks of the key queue that are due → `waiting`."""

    async def postpone(self, moments: Mapping[int, int]) -> list[ChangedTask]:
        """`waiting` → `scheduled` at these moments."""

    async def set_next_starts(self, moments: Mapping[KeyQueueName, int]) -> None:
        """Replace what the rates of these key queues remember."""

    async def of_kind(self, kind: str) -> list[KeyQueueName]:
        """The key queues of a kind that have ready or waiting tasks."""

    async def of_queue(self, queue: str) -> list[KeyQueueName]:
        """The key queues that have ready or waiting tasks in a queue."""

    async def prune_rates(self, limit: int) -> None:
        """Forget at most `limit` rates whose key queues may start tasks as if they had started none before."""


class GroupRows(Protocol):
    """Groups of tasks."""

    async def add(self, name: str) -> int:
        """Insert a group; its id."""

    async def set_then(self, group_id: int, task_id: int) -> None:
        """Remember the task that follows the group."""

    async def open(self, ids: Iterable[int]) -> set[int]:
        """Those of these groups that have not ended."""

    async def end_empty(self, ids: Iterable[int]) -> list[int]:
        """End those of these groups that have no live task and have not ended before."""

    async def release_followers(self, ids: Sequence[int]) -> list[ChangedTask]:
        """Tasks that waited for these groups → `scheduled`, `waiting` or `ready`, by their due time and limit key."""

    async def live_tasks(self, group_id: int) -> list[int]:
        """The live tasks of a group."""

    async def prune(self, age: int, limit: int) -> None:
        """Delete at most `limit` groups that ended longer ago than this and have no task left, live or final, the task
        that follows them included."""


class QueueRows(Protocol):
    """Queues."""

    async def pause(self, queue: str) -> bool:
        """Close a queue, which may be new; False: it was closed."""

    async def resume(self, queue: str) -> bool:
        """Open a queue; False: it was open, or is unknown."""


class NodeRows(Protocol):
    """Nodes and their leases."""

    async def lock_lease(self, node_id: str) -> bool | None:
        """Whether the lease of a node is live; None: there is no such node. It stays so until the transaction ends."""

    async def cordon(self, node_id: str) -> None:
        """The node may claim nothing from here on."""

    async def uncordon(self, node_id: str) -> None:
        """The node may claim again."""

    async def lock_dead(self, gone: Sequence[str]) -> list[DeadNode]:
        """Nodes whose lease has ended, and those of `gone`; none of them can renew until the transaction ends."""

    async def delete_idle(self, dead: Collection[str]) -> None:
        """Delete those of these nodes that hold no running task."""


class ReadyRows(Protocol):
    """Ready tasks, as a claim reads and takes them.

    Tasks are those of the request's queues that are not paused; commands are those of every queue. Expired tasks are
    left out. `ReadyTask.may_reserve` follows from the request's patience and node.
    """

    @property
    def reads_ahead(self) -> int:
        """How many tasks of each ready group a claim reads together with the held permits, before it knows how many it
        may take; 0 where a second read costs no round trip."""

    async def groups(self, request: ClaimRequest) -> ClaimableGroups:
        """The lease of the node, and the ready groups of the requested kinds, commands included."""

    async def lock_limits(self, kinds: Sequence[KindRequest]) -> SharedLimits:
        """Lock and read the limits, servers and rates that tasks of these kinds need: none of their permits is given
        to another claim until the transaction ends."""

    async def held_permits(
        self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]
    ) -> tuple[list[HeldPermits], list[ReadyTask]]:
        """The permits that running tasks hold, and what `first` finds."""

    async def first(self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]) -> list[ReadyTask]:
        """The first tasks of each ready group in claim order, at most as many as its number."""

    async def commands(
        self, request: ClaimRequest, kinds: Sequence[KindRequest], servers: Mapping[str, Sequence[str]], limit: int
    ) -> list[ReadyTask]:
        """The first commands of each of these kinds that are for any server, and for each of the given servers of its
        provider."""

    async def among(self, request: ClaimRequest, ids: Collection[int]) -> list[ReadyTask]:
        """Those of these tasks that are ready."""

    async def take(self, node_id: str, taken: Sequence[Taken]) -> list[Claim]:
        """`ready` → `running` for those of these tasks that are still as they were read, if the node may claim. What
        another claim was quicker to take, the primitives above do not find again."""

    async def is_cordoned(self, node_id: str) -> bool | None:
        """Whether the node is cordoned; None: it has no live lease."""

    async def reserve(self, request: ClaimRequest, task: ReadyTask) -> bool:
        """Reserve capacity of the node for a task, or go on to. False: it is no longer as it was read, or another live
        node has reserved capacity for it."""

    async def release_reservation(self, task_id: int, node_id: str) -> None:
        """The node reserves no capacity for the task from here on."""


class AuditRows(Protocol):
    """Operator actions and what came of them."""

    async def add(self, action: NewAction, outcome: str | None) -> AuditRecord:
        """Insert an action; `outcome` None: the node that is its subject will report it."""

    async def set_outcome(self, action_id: int, outcome: str) -> bool:
        """Write what a node reports of an action; False: it has an outcome, or is unknown."""

    async def latest(self, limit: int) -> list[AuditRecord]:
        """The latest actions, newest first."""

    async def open(self, node_id: str, limit: int) -> list[AuditRecord]:
        """The actions that a node has yet to report, oldest first."""

    async def prune(self, age: int, limit: int) -> None:
        """Of the oldest `limit` actions, delete those that are older than this."""


class LimitRows(Protocol):
    """Limits. What the code declared last is kept as JSON, beside the value that may have been changed since."""

    async def declared(self, names: Iterable[str]) -> dict[str, str]:
        """What was declared last of those of these limits that exist."""

    async def exclude_unlimited(self) -> None:
        """The kind of some key queues is about to get its first limit: wait for transactions that saw none, and let
        others wait that look for one."""

    async def declare(self, limit: NewLimit, declared: str) -> bool:
        """Insert a limit, or replace its value and rate; False: exactly this was declared beside this transaction."""

    async def set_value(self, name: str, value: int | None) -> bool:
        """Change the value of a limit; False: there is none of that name."""

    async def all(self) -> list[LimitRow]:
        """All limits, by name."""

    async def held(self) -> list[PermitCount]:
        """The permits that running tasks hold."""

    async def key_queue_totals(self) -> list[KeyQueueTotal]:
        """How many tasks of key queues run and wait, by kind."""


class ServerRows(Protocol):
    """Providers, their servers, and the health of these."""

    async def declared(self, providers: Iterable[str]) -> dict[str, str]:
        """What was declared last, as JSON, of those of these providers that exist."""

    async def declare(self, provider: NewProvider, declared: str) -> bool:
        """Insert a provider, or replace its back-off; its servers stay. False: exactly this was declared beside this
        transaction."""

    async def lock_provider(self, provider: str) -> bool:
        """Lock a provider; False: there is none of that name."""

    async def replace(self, provider: str, capacities: Mapping[str, int | None]) -> None:
        """Make these the servers of a provider, by address. One that stays keeps its health."""

    async def stranded(self, provider: str, addresses: Collection[str]) -> dict[int, str]:
        """The servers that commands of the provider are for which do not run yet, by the command's id, if they are none
        of these."""

    async def lock_health(
        self, servers: Collection[ServerName], failed: Collection[ServerName]
    ) -> dict[ServerName, ServerHealth]:
        """Lock those of `servers` for which an outcome is news (those of `failed`, and all that are not well), and read
        their health. A server that left its pool is missing."""

    async def set_health(self, server: ServerName, failures: int, backoffs: int, backs_off_until: int | None) -> None:
        """Write the health of a server."""

    async def all(self) -> list[ServerRow]:
        """All servers that are in a pool."""

    async def used(self) -> list[UsedServer]:
        """The servers that tasks run on."""


class Session(Protocol):
    """One transaction."""

    touched: Touched

    @property
    def locks(self) -> Locks:
        """The lock order."""

    @property
    def tasks(self) -> TaskRows:
        """Tasks."""

    @property
    def key_queues(self) -> KeyQueueRows:
        """Key queues."""

    @property
    def groups(self) -> GroupRows:
        """Groups."""

    @property
    def queues(self) -> QueueRows:
        """Queues."""

    @property
    def nodes(self) -> NodeRows:
        """Nodes."""

    @property
    def ready(self) -> ReadyRows:
        """Ready tasks."""

    @property
    def audit(self) -> AuditRows:
        """Operator actions."""

    @property
    def limits(self) -> LimitRows:
        """Limits."""

    @property
    def servers(self) -> ServerRows:
        """Providers and servers."""

    async def read_clock(self) -> int:
        """The store's clock."""
