"""The port to the database: what every store guarantees.

Rules for every call:

- Calls take and return lists. A returned list has one entry for each given entry, in the given order.
- A call is one transaction. When it returns, its effect is durable. When it raises, it had no effect; or, if the
  answer of the database was lost, the call can be repeated without harm.
- Every change of state is guarded by the state that it starts from. If the task is in another state, the call
  does not change it, and says so in its answer instead of raising.
- Times are whole microseconds since 1970, read from and compared by the store's own clock, which never runs back.
- Claim order is that of `stores.rules.node_capacity.claim_order`. For plain tasks it is by priority, higher first, then
  by id, lower first. The store assigns ids, in ascending order.
- Key queues: a task with a `limit_key` belongs to the key queue of its kind and key. Where a task without a key would
  become `ready`, this one becomes `waiting`. The transaction then balances the key queue: the first tasks in claim
  order, as many as the limit `key:<kind>` and its rate allow beside the running ones, become `ready`, and all others
  become `waiting`. Tasks of paused queues are not counted and stay `waiting`. If only the rate blocks the first task,
  that task becomes `scheduled` for the next permitted start. A kind whose limit is missing, or has neither a value
  nor a rate, has unlimited key queues: all their tasks are `ready`, those of paused queues too. A key queue is
  balanced whenever a task enters it or moves out of `ready`, `running` or `scheduled`, and when its limit changes. An
  expired task counts until it is ended.
- Dependencies: a task with `after` is `waiting` until all tasks that it needs have ended, in whatever way; it belongs
  to no key queue before that. The transaction that ends or deletes the last of them releases it: it becomes `scheduled`
  if it is due later, else as if it were inserted now. If a needed task does not succeed, `if_dependency_fails` decides:
  with `cancel`, the transaction that ends the needed task cancels the dependent, with the reason `dependency`, and in
  turn the tasks that depend on it. A needed task that had ended before the insert counts at once; if it did not
  succeed, with `cancel` the new task is `scheduled`, and the next `wake` cancels it. A retry of a task that did not
  succeed brings back the tasks that were cancelled because of it. Tasks that need it and have not started wait again.
- Groups and flows: the transaction that ends or deletes the last live task of a group ends the group. The task `then`
  depends on all tasks of the group, runs however they end, and ignores later retries of them. A replaced task remains
  in its group. Children are inserted before the store checks whether a group has ended. A retry of a task reopens its
  flow, but not its group. The tasks of a group or a flow are pruned together.
- Commands: their priority is always 0. They belong to a provider and not to a queue: a claim takes them from every
  queue, requested or not, paused or not.
- Errors: `StoreUnavailable` if a repeated call may succeed later, another `StoreError` if not.

`synergon.model.lifecycle` lists the legal changes of state. The transaction that ends a task also moves its row from
the live tasks to the history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import UNSET, UnsetType

from synergon.errors import SchemaError, StoreError
from synergon.model.claims import AttemptRequest, CandidateQuery, ClaimRequest, Claims, DryRun
from synergon.model.cluster_status import StoreStatus, StoreVitals
from synergon.model.dependencies import Dependency
from synergon.model.events import Event
from synergon.model.flows import FlowPage, FlowQuery
from synergon.model.groups import GroupRecord, NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.limits import (
    BatchOutlook,
    ClaimedProbes,
    LimitRecord,
    NewLimit,
    NewProvider,
    NewRate,
    NewServer,
    ProbeResult,
    ServerChange,
    ServerRecord,
)
from synergon.model.nodes import NewNode, NodeRecord
from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.outcomes import FencedOutcome, Report, Verdict
from synergon.model.printable import printable
from synergon.model.schedules import Fired, NewSchedule, ScheduleRecord, ScheduleRun
from synergon.model.task_records import Counts, QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.model.task_statistics import KindNumbers, Statistics, StatisticsQuery
from synergon.model.tasks import (
    Cutoffs,
    Extension,
    Insertion,
    MetaChange,
    Moved,
    NewTask,
    Reaped,
    Reprioritizing,
    RequestKey,
    Rescheduling,
    StoredRetention,
    Woken,
)
from synergon.stores.rows import NodeName
from synergon.stores.unreadable import UnreadableRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The differences between stores that code outside the stores depends on."""

    shared: bool
    """Several processes may use the store at once."""
    durable: bool
    """Tasks survive the end of the process."""
    transactions: bool
    """The store can join a caller's transaction (`conn=`) and open one for a task function (`ctx.transaction()`)."""
    remote: bool = False
    """The store is a server that may start later than the workers: a starting worker waits for it."""
    scans_to_count: bool = False
    """The store reads all live tasks to count them, so that nodes count them at intervals (`recount`)."""
    listens: bool = False
    """The store can announce the tasks that a caller's transaction inserted (`listen`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersions:
    """The schema version of the database, and the version that this code needs."""

    found: int | None
    """None if the database does not exist, or has no tables of synergon."""
    wanted: int


def read_version(stored: object, where: str) -> int:
    """Returns the schema version that a row stores. Raises `SchemaError` if it is not a number."""
    try:
        return int(str(stored))
    except ValueError:
        raise SchemaError(
            f"the schema version of {where} cannot be read: {printable(repr(stored)[:80])}; restore its row "
            "'schema_version' from a backup, or use another database"
        ) from None


class TaskTransaction(Protocol):
    """A transaction for a running task function, or for the function that follows its final failure. Its writes and the
    end of the task are committed together."""

    @property
    def connection(self) -> Any:
        """The driver's connection, for `async` task functions, which must not commit or roll back on it."""

    @property
    def blocking_connection(self) -> Any:
        """A synchronous connection to this transaction, for task functions that run in a thread."""

    async def finish(self, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        """Apply a success or a final failure, or the outcomes of a batch, and commit them together with the writes of
        the function.

        If a claim is stale, or no task ends as its outcome says (`rules.finish.is_committed`), everything is rolled
        back and no outcome is applied. Raises `Contention`, after a rollback, if another transaction was in conflict:
        the function may run again at once. Raises `RolledBack` if the database could not write: the function may run
        again later.
        """

    def explain(self, error: BaseException) -> StoreError | None:
        """Classifies an error that the task function raised. Returns `RolledBack` if the database could not write,
        another `StoreError` if the transaction was held for too long, None if the error has other causes."""

    async def rollback(self) -> None:
        """Undo the writes of the task function. Does nothing after `finish` or an earlier rollback."""


class LeaseKeeper(Protocol):
    """Renews the lease of one node over a connection of its own, so that no other call can delay the renewal.

    One thread with a running event loop makes all calls. It may be another thread than the engine's.
    """

    async def renew(self, node_id: str, lease: int, published: bytes | None = None) -> bool:
        """Extend the lease to `lease` microseconds from now. False if the node has no row: it has been declared dead.

        `published` is the new status of the node; None leaves it unchanged.
        """

    async def close(self) -> None:
        """Close the connection."""


class FinalEvents(Protocol):
    """Reads the final events of the history, from a cursor on."""

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

    @property
    def unreadable(self) -> UnreadableRows:
        """The values in tables that this store could not read. They make no call fail: the value is replaced, or its
        row is left out."""

    # ------------------------------------------------------------ open and close

    def introduce(self, client: str, logger: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        """Set the name that the database shows for the store's connections, and the logger for unreadable rows and slow
        statements. Called before `open`."""

    async def open(self) -> None:
        """Connect, and create or migrate the schema. If the role may not do that, raises a `SchemaError` that says what
        to run."""

    async def close(self) -> None:
        """Finish the calls that are under way, then disconnect. Idempotent. Later calls raise `NotConnected`."""

    async def now(self) -> int:
        """The time of the store's clock."""

    async def secret(self) -> bytes:
        """The secret with which peers of this store sign their messages. It is generated when the store is created; all
        nodes share it."""

    async def replace_secret(self) -> None:
        """Generate a new secret. Messages that were signed with the old one are rejected from then on."""

    async def identity(self) -> bytes:
        """A value that distinguishes this store from every other one. It never changes, not even when the secret is
        replaced."""

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
        `raise`, and `replace` of a running task, raise `KeyConflict`, and nothing of the call is stored. If `after`
        names a task that does not exist, the call raises `TaskNotFound`, and nothing is stored.
        """

    async def insert_for(self, task: NewTask, who: str, request: RequestKey | None = None) -> Insertion:
        """Insert a task for a caller of the web API. In one transaction with it, the audit records the task with `who`.
        If a task was inserted with the key of `request` during the last 24 hours, that task is returned, and nothing is
        stored."""

    async def announce_queues(self, queues: Iterable[str]) -> None:
        """Insert the rows of these queues before a caller's transaction inserts tasks. If the caller's transaction
        inserted such a row, other transactions that need the row would wait until it commits."""

    async def insert_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks inside the caller's transaction on `connection`. The caller commits it or rolls it back.

        Raises `NotAvailable` in a store that cannot do this, and `OptionError` if the connection belongs to another
        database or has no open transaction. Errors of the connection itself are passed on. In PostgreSQL the caller's
        transaction locks neither key queues nor the tasks that new ones need: a task with a limit key, or with an open
        dependency, is stored as `scheduled`, due at once, and the next `wake` moves it into its key queue, or lets it
        wait.
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

        Refusals. A node does not get a task that it has refused (`Refused`), as long as another node with a live lease
        runs its kind, serves its queue and has not refused it. After that it gets the task again, and its refusal ends
        the task.

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
        """What this claim would do with the task if the node had a live lease and were not cordoned. Changes
        nothing."""

    async def read_candidates(self, query: CandidateQuery) -> list[TaskRecord]:
        """Read ready tasks of a kind in claim order without claiming them. Excludes expired tasks, tasks of paused
        queues, and tasks that can never run on the node."""

    async def ahead(self, task_id: int, limit: int) -> int | None:
        """How many tasks of this task's kind, state and key queue precede it in claim order, at most `limit`. None if
        the task is neither `ready` nor `waiting`."""

    async def fair_ahead(self, task_id: int, limit: int) -> dict[str, int]:
        """For a ready task: how many ready tasks of its kind precede it in claim order, by tenant. Reads at most
        `limit` tasks of each ready group. Tasks without a tenant do not count."""

    async def next_start(self, kind: str, limit_key: str) -> int | None:
        """The stored moment from which the rate of a key queue permits the next start (`rules.rates`). None if no
        moment is stored."""

    async def next_batch(self, kind: str, limit_key: str) -> BatchOutlook | None:
        """The next batch of a key queue: how many tasks wait for it, and when it starts (`rules.batches`). None if the
        tasks of the kind run alone."""

    async def finish(self, outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        """Apply outcomes of attempts. Each must match `(id, claim_no, running)`; otherwise it changes nothing,
        and its verdict has no state.

        Succeeded → `succeeded` with its result; its children are inserted (key conflicts: `return`). Failed → `failed`
        with its reason; the error is appended. Retrying → `scheduled` (`ready` if the delay is 0); the error is
        appended. Snoozed → like Retrying, without an error, `attempts - 1`. Cancelled → `cancelled`. HandedBack →
        `ready` (`scheduled` with a delay), `attempts - 1`, and protected from preemption until the later of its old and
        new moment. Crashed → the error is appended, `attempts - 1`, `crashes + 1`, then `ready`, or `failed` with the
        reason `crashed` at `CRASH_LIMIT`. KeyAssigned → the attempt is given back, and the task joins the named key
        queue. Refused → the error is appended, `attempts - 1`, then `ready`, and the node does not get the task again;
        or `failed` with the reason `error` if all nodes with a live lease that run its kind and serve its queue have
        refused it, or at `REFUSAL_LIMIT`. ServerFault → the error is appended, `attempts - 1`, `server_failures + 1`,
        then `ready`, or `scheduled` if no server is in service that it has not tried; at `SERVER_FAILURE_LIMIT`, and
        for a command, like its outcome `otherwise`. If a cancellation was requested, the task ends `cancelled` instead.
        Retrying, Snoozed, ServerFault and Crashed set `owner_deaths` to 0 and clear the mark of a suspect; a task with
        crashes keeps the mark.

        A command that is handed back or crashes ends `failed` with the reason `crashed`: it is never run twice. An
        outcome that names a server counts for that server's health: after `backoff_after` failures in a row, or
        `failure_most` among its last `failure_window` outcomes, the server is taken out of service; the last verdict
        names such servers, and those that are back. An outcome that was applied before, because its answer was
        lost, gets its verdict again, and its children are not inserted twice. An outcome that cannot be written does
        not fail the others.
        """

    async def exchange(self, outcomes: Sequence[FencedOutcome], request: ClaimRequest) -> tuple[list[Verdict], Claims]:
        """`finish`, then `claim`: the claim can take the permits and slots that the outcomes free.

        Both are in one transaction, except with the distributed profile of PostgreSQL, where they are two. If the call
        raises, the outcomes may have been applied or not: the caller sends them again.
        """

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        """Write the progress and overdue marks of running attempts. False for a stale claim."""

    async def begin(self, hold_seconds: float) -> TaskTransaction:
        """Open a transaction for a task function. It is rolled back after `hold_seconds`. Raises `NotAvailable` in a
        store without transactions."""

    async def requests(self, node_id: str) -> list[AttemptRequest]:
        """The running tasks of this node for which a cancellation or more time was requested since they were
        claimed."""

    # ------------------------------------------------------------ due tasks, dead nodes, history

    async def wake(self, limit: int) -> Woken:
        """Make at most `limit` due tasks ready, end at most `limit` expired ones, and return when to call `wake` again.

        `next_in` is 0 if more tasks are due already; it also counts the ends of servers' back-offs. Waiting, scheduled
        and ready tasks can expire, those of paused queues too.
        """

    async def reap(self, gone: Sequence[str], limit: int) -> list[Reaped]:
        """Take at most `limit` running tasks from dead nodes, and delete the rows of dead nodes that hold no task.

        A node is dead if it has no row, if its lease has ended by the store's clock, or if it is named in `gone` (a
        peer saw that its process ended). The statement that takes a task checks this again. Each task: `attempts - 1`,
        `owner_deaths + 1`, an error is appended, and it is marked as a suspect; then `ready`, or `failed` with the
        reason `crashed` at `OWNER_DEATH_LIMIT` (a command: at once, because it is never run twice), or `cancelled` if
        that was requested.
        """

    async def prune(self, cutoffs: Cutoffs, limit: int) -> int:
        """Delete final tasks that are older than the cutoff of their state, or than their own `keep_for` if they have
        one, until `limit` are deleted, and at most `limit` operator actions and rows of statistics of each span that
        are older than theirs. Groups and flows are deleted as a whole. Returns the number of deleted tasks, which may
        exceed `limit`; fewer than `limit` means that nothing old is left."""

    async def append_statistics(self, source: str, at: int, counted: Sequence[KindNumbers]) -> None:
        """Write what the engine `source` has counted in the minute that begins at `at`. Replaces what the engine wrote
        earlier about this minute for these kinds and queues, so the call can be repeated."""

    async def statistics(self, query: StatisticsQuery) -> list[Statistics]:
        """The statistics of each kind and queue, by name. A kind and queue without counts is missing."""

    async def compact_statistics(self, limit: int) -> int:
        """Merge at most `limit` old minutes of statistics into hours, and old hours into days. Returns how many were
        merged. If that is `limit`, there may be more."""

    async def declare_retention(
        self, cutoffs: Cutoffs, name: str, *, is_default: bool = False
    ) -> StoredRetention | None:
        """Store the retention that the worker `name` declares. A declaration that equals the last one changes nothing,
        so a value that an operator has set since then remains in force. The default of a worker whose code and
        environment give no retention is stored only if there is none. The audit records a change, if the user of the
        database may write to it. Returns the retention that was replaced; None if there was none, or it does not
        change."""

    async def retention(self) -> StoredRetention | None:
        """The retention of the store. None if no worker has declared and no operator has set one."""

    # ------------------------------------------------------------ nodes

    async def register(self, node: NewNode) -> None:
        """Insert the row of the node, with a lease from now."""

    async def keeper(self) -> LeaseKeeper:
        """Open a lease keeper. Called on the thread and event loop that will use it."""

    async def unregister(self, node_id: str) -> None:
        """Delete the row of the node, and keep its name. Any node may then reap the tasks that the deleted node
        still holds."""

    async def node_names(self, ids: Collection[str]) -> dict[str, NodeName]:
        """The names and processes of these nodes, also of nodes that are gone. Names are pruned with the oldest
        tasks."""

    async def nodes(self) -> list[NodeRecord]:
        """All registered nodes, including dead ones that are not reaped yet."""

    async def running_by_node(self) -> dict[str, int]:
        """The number of running tasks by node id. Includes nodes that have no row, and excludes nodes without running
        tasks."""

    # ------------------------------------------------------------ operations on tasks and queues

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """Cancel tasks. A task that does not run becomes `cancelled` at once. A running task is marked for its node;
        the mark is never removed. A final task is not changed."""

    async def retry(self, ids: Sequence[int]) -> list[Moved]:
        """Run final tasks again: → `ready`, with the old id and `claim_no`. Attempts, crashes, expiry, cancel request,
        result and progress are cleared, and the list of errors is retained. A task whose key a live task holds is not
        changed. Tasks that were cancelled only because of these tasks come back (→ `waiting`)."""

    async def delete(self, ids: Sequence[int]) -> list[Moved]:
        """Delete tasks that are not running, live or final. The reported `state` of a deleted task is None. A final
        task is not deleted while a live task depends on it and may need its result."""

    async def reschedule(self, changes: Sequence[Rescheduling]) -> list[Moved]:
        """Change when `scheduled` or `ready` tasks are due. They become `scheduled` or `ready` accordingly."""

    async def set_priority(self, changes: Sequence[Reprioritizing]) -> list[Moved]:
        """Change the priority of live tasks that are not running and not commands."""

    async def extend_timeout(self, extensions: Sequence[Extension]) -> list[Moved]:
        """Record more time for the attempts of running tasks; their nodes read it (`requests`). It holds for the
        current attempt only. Extensions add up, to 100 years at most."""

    async def update_meta(self, changes: Sequence[MetaChange]) -> list[dict[str, Any] | None]:
        """Change the metadata of tasks, live or final. Returns the new metadata, or None for a task that does not
        exist. Raises `PayloadError` if the metadata becomes too large. A running attempt keeps the metadata of its
        claim."""

    async def pause(self, queues: Sequence[str]) -> list[bool]:
        """Pause queues: no node claims from them until they are resumed. False for a queue that was paused already."""

    async def resume(self, queues: Sequence[str]) -> list[bool]:
        """Resume paused queues. False for a queue that was not paused."""

    # ------------------------------------------------------------ limits, servers, groups, operator actions

    async def declare(self, limits: Sequence[NewLimit], providers: Sequence[NewProvider]) -> None:
        """Store the limits and providers that the code declares. A declaration that equals the last one changes
        nothing, so a value that an operator has set since then remains in force."""

    async def set_limit(
        self, name: str, value: int | UnsetType | None, rate: NewRate | UnsetType | None = UNSET
    ) -> bool:
        """Change the value or the rate of a limit for all nodes; UNSET leaves it unchanged. False if the limit is not
        declared. Running tasks continue."""

    async def limits(self) -> list[LimitRecord]:
        """All limits, by name."""

    async def set_servers(self, provider: str, pool: Sequence[NewServer]) -> bool:
        """Replace the pool of a provider. False if the provider is not declared. Tasks on a removed server finish
        there; commands that wait for it end `failed` with the reason `error`. A server that remains in the pool retains
        its health. A server that returns later starts with a clean record."""

    async def claim_probes(self, providers: Sequence[str]) -> ClaimedProbes:
        """Claim the probes that are due now: of servers of these providers that are out of service and whose back-off
        is over, if the provider has a probe. Until the timeout of a probe and a margin have passed, no other call
        claims it."""

    async def finish_probes(self, results: Sequence[ProbeResult]) -> list[ServerChange | None]:
        """Apply the results of claimed probes: a success returns the server to service, a failure begins its next
        back-off. A result changes nothing if the probe was claimed again, or its server was removed, meanwhile. Returns
        for each result the server if it is back in service, otherwise None."""

    async def servers(self) -> list[ServerRecord]:
        """All servers, by provider and address, including removed ones that tasks still run on."""

    async def dependencies(self, ids: Sequence[int], *, with_results: bool = False) -> list[list[Dependency]]:
        """The dependencies of each of these tasks, in order. With `with_results`, they include results, unless the
        results for one task have more than `RESULTS_LIMIT_BYTES` together."""

    async def open_group(self, new: NewGroup) -> OpenedGroup:
        """Store a group and its tasks, or a flow and its steps, all or nothing. A group without tasks ends at once."""

    async def open_group_on(self, connection: Any, new: NewGroup) -> OpenedGroup:
        """`open_group` inside the caller's transaction on `connection`, as `insert_on` does."""

    def open_group_on_sync(self, connection: Any, new: NewGroup) -> OpenedGroup:
        """`open_group_on` for callers without an event loop."""

    async def list_flows(self, query: FlowQuery) -> FlowPage:
        """One page of the matching flows, newest first."""

    async def retry_flow(self, flow_id: int) -> list[Moved]:
        """Run again the tasks of a flow that failed or were cancelled, except tasks that were cancelled because of a
        dependency that does not run again. Changes nothing if a live task holds the key of one of them
        (`key_holder`)."""

    async def groups(self, ids: Sequence[int]) -> list[GroupRecord | None]:
        """These groups, with the numbers of their tasks by state. None for a group that does not exist."""

    async def cancel_group(self, group_id: int, why: str | None = None) -> list[Moved]:
        """Cancel all live tasks of a group, as `cancel` does."""

    # ------------------------------------------------------------ schedules

    async def declare_schedules(self, definitions: Sequence[NewSchedule]) -> list[str]:
        """Store the schedules that the code of a starting worker declares. New schedules are inserted. A schedule that
        equals its last declaration is not changed. A changed schedule keeps its pause, and its next occurrence is
        computed anew. Schedules that were made at run time are not changed; returns their names."""

    async def create_schedule(self, definition: NewSchedule) -> ScheduleRecord | None:
        """Store a schedule at run time. Returns None, without a change, if a schedule with this name exists. Raises
        `OptionError` if it has no occurrence from now on."""

    async def update_schedule(
        self, name: str, changes: dict[str, Any], who: str | None = None
    ) -> ScheduleRecord | None:
        """Change fields of a schedule that was made at run time. With `who`, the audit records the change. Returns None
        if no schedule has this name. Raises `OptionError`, without a change, if the fields do not fit each other, or if
        code declares the schedule."""

    async def fire(self, declared: Collection[str], limit: int) -> Fired:
        """Fire at most `limit` due schedules: those made at run time, and those of `declared`, the schedules that the
        code of the caller declares.

        For each schedule the transaction advances `next_at`, guarded by its old value, and inserts the tasks. So each
        occurrence creates at most one task. Occurrences that create none are counted, with the reason. An occurrence is
        missed if the next one is due, too; `missed` decides how many of the latest missed occurrences run. An
        occurrence is skipped during a pause, while a live task holds the unique key, or, if `overlap` is `skip`, while
        the last task has not ended. `next_in` is 0 if more schedules are due.
        """

    async def run_schedule(self, name: str, who: str) -> ScheduleRun | None:
        """Create one more task of a schedule now, if `overlap` permits it, and record that in the audit. Returns None
        if the schedule does not exist."""

    async def schedules(self) -> list[ScheduleRecord]:
        """All schedules, by name. No state is `undeclared`, because the store does not know which nodes declare a
        schedule."""

    async def act(self, action: NewAction) -> AuditRecord:
        """Carry out an operator action and record it in the audit, in one transaction.

        A bulk operation (`cancel_all`, ...) is recorded only; its engine carries it out and reports with `action_done`.
        `cordon`, `uncordon`, `drain`, `restart` and `stop` are recorded for the named node, which carries them out; its
        row shows at once whether it is cordoned. An action changes nothing and is recorded with its reason (`outcome`)
        if it is invalid, if its node does not exist or has no live lease, or if it comes with a `rejection`. Texts:
        `stores.rules.action_texts`.
        """

    async def audit(self, limit: int = 100, node_id: str | None = None) -> list[AuditRecord]:
        """The latest operator actions, newest first. With `node_id`: those that this node has yet to report, oldest
        first."""

    async def action_done(self, action_id: int, outcome: str) -> bool:
        """Record what a node or an engine reports about an operator action. False if that was reported before."""

    # ------------------------------------------------------------ queries

    async def get(self, ids: Sequence[int]) -> list[TaskRecord | None]:
        """These tasks, live or final. None for a task that does not exist."""

    async def list_tasks(self, query: TaskQuery) -> TaskPage:
        """One page of the matching tasks, in the order of the query."""

    async def endings(
        self, after: str | None, states: Collection[State], kinds: Collection[str] | None = None
    ) -> FinalEvents:
        """Open a reader of final events with these states, after the cursor of an event. None starts with the oldest
        event in the history, `stores.final_events.NOW` with the next one. Raises `OptionError` if it is not a cursor of
        this kind of store.

        `kinds` are the kinds that the reader is interested in. The reader returns other kinds too, so that its cursor
        advances, but does not raise `EventsLost` if those are pruned.
        """

    async def counts(self, *, is_exact: bool = False) -> Counts[tuple[str, str, State]]:
        """The numbers of tasks by (queue, kind, state), without zeros. Those of final tasks are exact. Those of live
        tasks are exact if `is_exact`, or if there are few live tasks, or if no node has counted them recently.
        Otherwise they are the numbers of the last `recount`, whose moment is `counted_at`. The cost does not depend on
        the size of the history, and without `is_exact` seldom on the number of live tasks."""

    async def recount(self, age: int, least: int = 5000) -> bool:
        """Count all live tasks and store the numbers for `counts`. False, without a change, if there are no more than
        `least`, or if they were counted less than `age` microseconds ago."""

    async def queues(self) -> list[QueueRecord]:
        """Every queue that ever had a task or was paused, by name, with its counts."""

    async def ready_kinds(self) -> set[str]:
        """The kinds that have ready tasks, found by an index."""

    async def status(self) -> StoreStatus:
        """Depth and age of the queues, failures of the last hour, overdue tasks and suspended servers, from one
        snapshot."""

    async def vitals(self) -> StoreVitals:
        """The use of the connections, and what slows the database down. Cheap."""

    async def describe(self) -> dict[str, str]:
        """Facts about the store for people, as `synergon doctor` shows them: versions, journal mode, size, clock."""
