"""The port to the database: what every store guarantees.

Rules for every call:

- Calls take and return lists. A returned list has one entry for each given entry, in the given order.
- A call is one transaction. When it returns, its effect is durable. When it raises, it had no effect; or, if the
  answer of the database was lost, the call can be repeated without harm.
- Every change of state is guarded by the state that it starts from. A change that is no longer legal changes nothing
  and is reported, never raised.
- Times are whole microseconds since 1970, read from and compared by the store's own clock, which never runs back.
- Claim order is by priority, higher first, then by id, lower first. The store assigns ids, in ascending order.
- Key queues: a task with a `limit_key` belongs to the key queue of its kind and key. Where a task without a key would
  become `ready`, this one becomes `waiting`. The transaction then balances the key queue: the first tasks in claim
  order, as many as the limit `key:<kind>` and its rate allow beside the running ones, become `ready`, and all others
  become `waiting`. Tasks of paused queues are not counted and stay `waiting`. If only the rate blocks the first task,
  that task becomes `scheduled` for the next permitted start. A kind whose limit is missing, or has neither a value
  nor a rate, has unlimited key queues: all their tasks are `ready`, those of paused queues too. A key queue is
  balanced whenever a task enters it or moves out of `ready`, `running` or `scheduled`, and when its limit changes. An
  expired task counts until it is ended.
- Groups: the transaction that ends or deletes the last live task of a group ends the group and releases the tasks
  that wait for it. A replaced task remains in its group. Children are inserted before the store checks whether a group
  has ended. The store may delete an ended group when the history has no row of its tasks and of the task that follows.
- Commands: their priority is always 0. They belong to a provider and not to a queue: a claim takes them from every
  queue, requested or not, paused or not.
- Errors: `StoreUnavailable` if a repeated call may succeed later, another `StoreError` if not.

`synergon.model.lifecycle` lists the legal changes of state. The transaction that ends a task also moves its row from
the live tasks to the history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from synergon.model.claims import CandidateQuery, ClaimRequest, Claims, DryRun
from synergon.model.events import Event
from synergon.model.groups import GroupRecord, NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.limits import LimitRecord, NewLimit, NewProvider, NewServer, ServerRecord
from synergon.model.nodes import NewNode, NodeRecord
from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.outcomes import FencedOutcome, Report, Verdict
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.model.tasks import Cutoffs, Insertion, Moved, NewTask, Reaped, Reprioritizing, Rescheduling, Woken


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store can do, where stores differ."""

    shared: bool
    """Several processes may use the store at once."""
    durable: bool
    """Tasks survive the end of the process."""
    transactions: bool
    """The store can join a caller's transaction (`conn=`) and open one for a task function (`ctx.transaction()`)."""
    remote: bool = False
    """The store is a server that may start later than the workers: a starting worker waits for it."""
    listens: bool = False
    """The store can announce tasks that a caller's transaction inserted (`listen`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersions:
    """The schema version of the database, and the version that this code needs."""

    found: int | None
    """None if there is no database, or none of synergon's tables in it."""
    wanted: int


class TaskTransaction(Protocol):
    """A transaction for a running task function. Its writes and the success of its task are committed together."""

    @property
    def connection(self) -> Any:
        """The driver's connection, for `async` task functions, which must not commit or roll back on it."""

    @property
    def blocking_connection(self) -> Any:
        """A synchronous connection to this transaction, for task functions that run in a thread."""

    async def finish(self, fenced: FencedOutcome) -> Verdict:
        """Apply a success and commit it together with the writes of the task function.

        If the claim is stale or the task is to be cancelled, everything is rolled back and the outcome is not applied.
        Raises `Contention`, rolled back too, if another transaction was in conflict: the task function may run again at
        once.
        """

    async def rollback(self) -> None:
        """Undo the writes of the task function. Does nothing after `finish` or an earlier rollback."""


class LeaseKeeper(Protocol):
    """Renews the lease of one node over a connection of its own, so that no other call can delay it.

    One thread with a running event loop makes all calls; it need not be the thread of the engine.
    """

    async def renew(
        self, node_id: str, lease: int, published: bytes | None = None, *, is_stopping: bool = False
    ) -> bool:
        """Extend the lease to `lease` microseconds from now. False if the node has no row: it has been declared dead.

        `published` is the new status of the node; None leaves it unchanged. `is_stopping` marks the node as stopping,
        for good.
        """

    async def close(self) -> None:
        """Close the connection."""


class FinalEvents(Protocol):
    """A reader of the history, from a cursor on."""

    async def read(self, limit: int) -> list[Event]:
        """Read the next final events, at most `limit`. An empty list means that there are none yet; a later call may
        find some.

        Each event is returned exactly once, in whatever order transactions commit. Events of transactions that did not
        overlap come in commit order. Raises `EventsLost` if rows were pruned before they were read.
        """


class Store(Protocol):
    """One database of tasks."""

    url: str
    capabilities: Capabilities

    # ------------------------------------------------------------ open and close

    async def open(self) -> None:
        """Connect, and create or migrate the schema if the role may. Otherwise `SchemaError` says what to run."""

    async def close(self) -> None:
        """Finish the calls that are under way, then disconnect. Idempotent. Later calls raise `NotConnected`."""

    async def now(self) -> int:
        """The time of the store's clock."""

    async def secret(self) -> bytes:
        """The secret with which peers of this store sign their messages. It is made once, for all nodes."""

    async def replace_secret(self) -> None:
        """Make a new secret. Signatures made with the old one are invalid from then on."""

    async def identity(self) -> bytes:
        """A value that distinguishes this store from every other one. It is made once and never changes."""

    async def schema_versions(self) -> SchemaVersions | None:
        """Read the schema version without opening or changing anything. None if the store has no schema."""

    def schema_sql(self) -> str:
        """The SQL script that creates the tables of a new database. Raises `NotAvailable` in a store without tables."""

    def grants_sql(self, role: str, name: str) -> str:
        """The SQL script that gives the database role `name` the rights of a producer, worker, viewer or operator.
        Raises `NotAvailable` in a store without roles."""

    # ------------------------------------------------------------ insert

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store all of `tasks` or none.

        A task that is due later (`run_at`, `delay`) becomes `scheduled`, any other `ready`. A `key` conflicts if a live
        task of its kind, or an earlier task of the list, has it. `on_conflict` decides: `return` answers with the
        holder of the key; `replace` puts the new payload, options and due time into the holder, which retains its id;
        `raise`, and `replace` of a running task, raise `KeyConflict`, and nothing of the call is stored.
        """

    async def announce_queues(self, queues: Iterable[str]) -> None:
        """Insert the rows of these queues ahead of a caller's transaction. A transaction that inserted such a row
        itself would block all other users of the queue until it commits."""

    async def insert_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks inside the caller's transaction on `connection`. The caller commits it or rolls it back.

        Raises `NotAvailable` in a store that cannot do this, and `OptionError` if the connection belongs to another
        database or has no open transaction. Errors of the connection itself are passed on. In PostgreSQL the caller's
        transaction does not lock key queues: a task with a limit key is stored as `scheduled`, due at once, and the
        next `wake` moves it into its key queue.
        """

    def insert_on_sync(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """`insert_on` for callers without an event loop, on the thread that owns the connection. Raises `OptionError`
        for an asynchronous connection."""

    async def listen(self, on_kinds: Callable[[Iterable[str] | None], None]) -> None:
        """Call `on_kinds` with the kinds of tasks that a caller's transaction inserted, after each commit; None means
        any kind.

        Runs until it is cancelled. Raises `StoreUnavailable` when the connection is lost. For stores with the
        capability `listens`.
        """

    # ------------------------------------------------------------ claim and finish

    async def claim(self, request: ClaimRequest) -> Claims:
        """Claim ready tasks: `ready` → `running`, `claim_no + 1`, `attempts + 1`; owner and start time are set.

        Takes the first tasks in claim order of the requested kinds and queues, except those of paused queues and
        expired ones. Returns them in claim order. Raises `LeaseLost` if the node has no live lease.

        Limits. Where a kind request names limits or a provider, a task is claimed only if it gets a permit of each,
        together with its server and slot (`stores.rules.shared_capacity`). Permits are counted and taken under locks,
        so no limit is exceeded. A kind without a free permit does not block other kinds. Commands are claimed first.
        Tasks of kinds with a rate are charged to the rate of their key queue.

        Capacity. A task is claimed only if it fits the node, in the order of `claim_order`
        (`stores.rules.node_capacity`). Ready tasks are indexed by kind, queue and requirements; of a ready group that
        does not fit, only the first task is read.

        Reservation. A node reserves capacity for at most one task. Without `reserved_task` the claim reserves capacity
        for the first task in order that fits the node later, has been due for `patience`, has free permits, and is not
        reserved by another live, uncordoned node. The claim then takes no further task and reports the reservation
        (`Claims.reserved`). With `reserved_task` the claim chooses no other. It renews the reservation for
        `reserve_microseconds` if the task is ready, its kind is requested (a count of 0 suffices), its queue is
        requested and not paused, it has not expired, its limits and servers have permits, and no other live node has
        reserved it. Otherwise, and if `reserve_microseconds` is 0, it drops the reservation. A reserved task precedes
        all but commands and urgent tasks. A cordoned node gets no tasks.
        """

    async def dry_run(self, request: ClaimRequest, task_id: int) -> DryRun:
        """What this claim would do with a task, if the node may claim; nothing is changed."""

    async def read_candidates(self, query: CandidateQuery) -> list[TaskRecord]:
        """Read ready tasks in claim order without claiming them, except those of paused queues and expired ones."""

    async def ahead(self, task_id: int, limit: int) -> int | None:
        """Count the tasks that precede this `ready` or `waiting` task: tasks of its kind, state and key queue. The
        count stops at `limit`. None if the task is in another state."""

    async def next_start(self, kind: str, limit_key: str) -> int | None:
        """The stored value of a key queue's rate (`rules.rates`): when its next start is on time. None without a
        value."""

    async def finish(self, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        """Apply outcomes of attempts. Each must match `(id, claim_no, running)`; otherwise it changes nothing and its
        verdict is None.

        Succeeded → `succeeded` with its result; its children are inserted (key conflicts: `return`). Failed → `failed`
        with its reason; the error is appended. Retrying → `scheduled` (`ready` if the delay is 0); the error is
        appended. Snoozed → like Retrying, without an error, `attempts - 1`. Cancelled → `cancelled`. HandedBack →
        `ready`, `attempts - 1`, and protected from preemption until the later of its old and new moment. Crashed → the
        error is appended, `attempts - 1`, `crashes + 1`, then `ready`, or `failed` with the reason `crashed` at
        `CRASH_LIMIT`. KeyAssigned → the attempt is given back, and the task joins the named key queue. If a
        cancellation was requested, the task ends `cancelled` instead.

        A command that is handed back or crashes ends `failed` with the reason `crashed`: it is never run twice. An
        outcome that names a server counts for that server's health: after `backoff_after` failures in a row the server
        backs off, each time twice as long, until a success. An outcome that was applied before, because its answer was
        lost, gets its verdict again, and its children are not inserted twice. An outcome that cannot be written does
        not fail the others.
        """

    async def exchange(self, outcomes: Sequence[FencedOutcome], request: ClaimRequest) -> tuple[list[Verdict], Claims]:
        """`finish`, then `claim`, in one transaction: the claim can take the permits and slots that the outcomes free.

        If it raises, neither has happened, or the answer was lost. The caller then sends the outcomes again.
        """

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        """Write the progress and overdue marks of running attempts. False for a stale claim."""

    async def begin(self, hold_seconds: float) -> TaskTransaction:
        """Open a transaction for a task function. It is rolled back after `hold_seconds`. Raises `NotAvailable` in a
        store without transactions."""

    async def cancel_requests(self, node_id: str) -> list[int]:
        """The running tasks of this node for which a cancellation was requested."""

    # ------------------------------------------------------------ due tasks, dead nodes, history

    async def wake(self, limit: int) -> Woken:
        """Make at most `limit` due tasks ready, end at most `limit` expired ones, and return when to call `wake` again.

        `next_in` is 0 if more tasks are due already. The end of a server's back-off counts as such a moment, too.
        Waiting, scheduled and ready tasks can expire, those of paused queues too.
        """

    async def reap(self, gone: Sequence[str], limit: int) -> list[Reaped]:
        """Take at most `limit` running tasks from dead nodes, and delete the rows of dead nodes that hold no task.

        A node is dead if it has no row, if its lease has ended by the store's clock, or if it is named in `gone` (a
        peer saw that its process ended). The statement that takes a task checks this again. Each task: `attempts - 1`,
        `crashes + 1`, an error is appended; then `ready`, or `failed` with the reason `crashed` at `CRASH_LIMIT` (a
        command: at its first crash), or `cancelled` if that was requested. A node that was stopping charges no crash
        and adds no error, except to a command, which is never run twice.
        """

    async def prune(self, cutoffs: Cutoffs, limit: int) -> int:
        """Delete at most `limit` final tasks that are older than the cutoff of their state, and at most `limit`
        operator actions that are older than theirs. Returns the number of deleted tasks."""

    # ------------------------------------------------------------ nodes

    async def register(self, node: NewNode) -> None:
        """Insert the row of the node, with a lease from now."""

    async def keeper(self) -> LeaseKeeper:
        """Open a lease keeper. Called on the thread and event loop that will use it."""

    async def unregister(self, node_id: str) -> None:
        """Delete the row of the node. Any node may then reap the tasks that it still holds."""

    async def nodes(self) -> list[NodeRecord]:
        """All registered nodes, including dead ones that are not reaped yet."""

    async def running_by_node(self) -> dict[str, int]:
        """The number of running tasks by node id, without zeros, including nodes that have no row."""

    # ------------------------------------------------------------ operations on tasks and queues

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """Cancel tasks. One that does not run → `cancelled` at once. One that runs is marked, and the mark is never
        removed. A final task is not changed."""

    async def retry(self, ids: Sequence[int]) -> list[Moved]:
        """Run final tasks again: → `ready`, with the old id and `claim_no`. Attempts, crashes, expiry, cancel request,
        result and progress are cleared, and the list of errors is retained. A task whose key a live task holds is not
        changed."""

    async def delete(self, ids: Sequence[int]) -> list[Moved]:
        """Delete tasks that are not running, live or final. The reported `state` of a deleted task is None."""

    async def reschedule(self, changes: Sequence[Rescheduling]) -> list[Moved]:
        """Change when `scheduled` or `ready` tasks are due. They become `scheduled` or `ready` accordingly."""

    async def set_priority(self, changes: Sequence[Reprioritizing]) -> list[Moved]:
        """Change the priority of tasks that are live and not running."""

    async def pause(self, queues: Sequence[str]) -> list[bool]:
        """Pause queues: no node claims from them until they are resumed. False for a queue that was paused already."""

    async def resume(self, queues: Sequence[str]) -> list[bool]:
        """Resume paused queues. False for a queue that was not paused."""

    # ------------------------------------------------------------ limits, servers, groups, operator actions

    async def declare(self, declared: Sequence[NewLimit], providers: Sequence[NewProvider]) -> None:
        """Store the limits and providers that the code declares. A declaration that equals the last one changes
        nothing, so a value that an operator has set since then remains in force."""

    async def set_limit(self, name: str, value: int | None) -> bool:
        """Change the value of a limit for all nodes. False if it is not declared. Running tasks continue."""

    async def limits(self) -> list[LimitRecord]:
        """All limits, by name."""

    async def set_servers(self, provider: str, pool: Sequence[NewServer]) -> bool:
        """Replace the pool of a provider. False if the provider is not declared. Tasks on a removed server finish
        there; commands that wait for one end `failed` with the reason `error`. A server that remains in the pool
        retains its health; one that returns later starts with a clean record."""

    async def servers(self) -> list[ServerRecord]:
        """All servers, by provider and address, including removed ones that tasks still run on."""

    async def open_group(self, group: NewGroup) -> OpenedGroup:
        """Store a group and its tasks, all or nothing. A group without tasks ends at once."""

    async def groups(self, ids: Sequence[int]) -> list[GroupRecord | None]:
        """These groups, with their tasks counted."""

    async def cancel_group(self, group_id: int, why: str | None = None) -> list[Moved]:
        """Cancel all live tasks of a group, as `cancel` does."""

    async def act(self, order: NewAction) -> AuditRecord:
        """Carry out an operator action and record it in the audit, in one transaction.

        `cordon`, `uncordon`, `drain`, `restart` and `stop` are recorded for the named node, which carries them out; its
        row shows at once whether it is cordoned. An action changes nothing and is recorded with its reason (`outcome`)
        if it is invalid, if its node does not exist or has no live lease, or if it comes with a `rejection`. Texts:
        `stores.rules.action_texts`.
        """

    async def audit(self, limit: int = 100, node_id: str | None = None) -> list[AuditRecord]:
        """The latest operator actions, newest first. With `node_id`: those that this node has yet to report, oldest
        first."""

    async def action_done(self, action_id: int, outcome: str) -> bool:
        """Record what a node reports about an operator action. False if that was reported before."""

    # ------------------------------------------------------------ queries

    async def get(self, ids: Sequence[int]) -> list[TaskRecord | None]:
        """These tasks, live or final. None for a task that does not exist."""

    async def list_tasks(self, query: TaskQuery) -> TaskPage:
        """One page of the matching tasks, newest id first."""

    async def endings(
        self, after: str | None, states: Collection[State], kinds: Collection[str] | None = None
    ) -> FinalEvents:
        """Open a reader of final events with these states, after the cursor of an event. None starts with the oldest
        event in the history, `stores.final_events.NOW` with the next one. Raises `OptionError` if the cursor is not one
        of this kind of store.

        `kinds` are the kinds that the reader is interested in. The reader returns other kinds too, so that its cursor
        advances, but does not raise `EventsLost` if those are pruned.
        """

    async def counts(self) -> dict[tuple[str, str, State], int]:
        """Exact numbers of tasks by (queue, kind, state), without zeros, from one snapshot. The cost does not depend on
        the size of the history."""

    async def queues(self) -> list[QueueRecord]:
        """Every queue that ever had a task or was paused, by name, with its counts."""

    async def describe(self) -> dict[str, str]:
        """Facts for people (`synergon doctor`): versions, journal mode, size, clock."""
