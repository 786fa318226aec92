"""The port to the database: what every store promises, and nothing that only one of them could.

Rules for all of it:

- Every call takes and returns lists; a returned list has one entry per entry given, in that order.
- A call is one transaction: when it returns, its effect is durable; when it raises, it had none (or, if the
  answer was lost, repeating it does no harm).
- Every move is guarded by the state it starts from. A move that is not legal any more changes nothing and is
  reported, never raised.
- Times are whole microseconds since 1970, made and compared by the store's own clock. The clock never runs back.
- Order is by priority, higher first, then by id, lower first. Ids are given by the store and only grow.
- Lines: a task with a `limit_key` stands in the line of its kind and key. Whatever would make it `ready` makes it
  `waiting` instead, and then the line is put in order in the same transaction: the first of its tasks, as many as the
  limit `key:<kind>` has room for beside those that run and as its rate allows to start now, are `ready`, the rest are
  `waiting`; a task that has a better place takes the place of a `ready` one. Tasks of paused queues have no place. If
  only the rate holds the first one back, it is `scheduled` for its turn. A kind without that limit on record, or with
  neither value nor rate in it, has lines without end: everybody in them is `ready`, in paused queues too. The same
  happens after every move out of `ready`, `running` or (because it may have been the turn of a rate) `scheduled`, and
  when the limit changes. A task that has expired keeps its place until it is ended.
- Groups: whatever ends or removes the last live task of a group ends the group and releases what waits for it.
  A task stays in its group when it is replaced. Children count before it is asked whether a group has ended. An ended
  group may be forgotten when the last of its rows (the task that follows it included) leaves the history.
- Commands have no priority: it is 0, and nobody can change it. They are for a provider, not for a queue: a claim takes
  them from every queue, whichever it asks for and whichever are paused.
- Errors: `StoreUnavailable` if the same call may succeed later, other `StoreError`s if not.

The legal moves are those of `synergon.model.lifecycle`. Who moves a task into a final state moves its row from the live
tasks to the history in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from synergon.model.claims import CandidateQuery, ClaimRequest, Claims
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
    """Where stores differ; asked once instead of `if`s everywhere."""

    shared: bool
    """Several processes may use it at once."""
    durable: bool
    """It survives the process."""
    transactions: bool
    """It can join a caller's transaction (`conn=`) and offer one to a body (`ctx.transaction()`)."""
    remote: bool = False
    """It is a server, which may start after those who use it: a worker waits for it."""
    listens: bool = False
    """It can tell of tasks that came by way of a caller's transaction (`listen`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersions:
    """How far the database and this code agree."""

    found: int | None
    """None: there is no database, or no tables of ours in it."""
    wanted: int


class TaskTransaction(Protocol):
    """A transaction that a running body writes in, and that its success is committed with."""

    @property
    def connection(self) -> Any:
        """The driver's own connection; the body must not commit or roll back on it."""

    @property
    def blocking_connection(self) -> Any:
        """The same for a body in a thread."""

    async def finish(self, fenced: FencedOutcome) -> Verdict:
        """Settle a success and commit everything together. Whatever else it comes to, because the claim is stale or
        somebody wants the task cancelled, everything is rolled back, and it is not settled yet. Contention: somebody
        else was in the way, everything is rolled back, and the body might run again at once."""

    async def rollback(self) -> None:
        """Undo what the body wrote. Does nothing after `finish` or an earlier rollback."""


class LeaseKeeper(Protocol):
    """Renews one node's lease on a path of its own, so that nothing else can hold it up.

    All its calls are made from one thread with a running event loop, which need not be the engine's.
    """

    async def renew(
        self, node_id: str, lease: int, published: bytes | None = None, *, is_stopping: bool = False
    ) -> bool:
        """Lease for `lease` microseconds from now. False: the node's row is gone, it has been declared dead.

        `published` is what the node says of itself from now on; None: as before. `is_stopping` marks the node as one
        that was told to stop; the mark stays.
        """

    async def close(self) -> None:
        """Give the path up."""


class FinalEvents(Protocol):
    """One reading of the history, from some place on."""

    async def read(self, limit: int) -> list[Event]:
        """The next tasks that have ended, at most `limit`; none: there are none yet, and the next call may find some.

        Whatever order transactions commit in, none is left out and none comes twice. Those whose commits did not
        overlap come in the order of these. `EventsLost` if some were pruned before they could be read.
        """


class Store(Protocol):
    """One database."""

    url: str
    capabilities: Capabilities

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        """Connect; create or migrate the schema if the role may. `SchemaError` says what to run otherwise."""

    async def close(self) -> None:
        """Finish the calls under way, then disconnect. Idempotent. Later calls raise `NotConnected`."""

    async def now(self) -> int:
        """The store's clock."""

    async def secret(self) -> bytes:
        """What proves that a message comes from a program that may read this store; one for all."""

    async def replace_secret(self) -> None:
        """Make a new secret; the old one proves nothing any more."""

    async def identity(self) -> bytes:
        """What tells this store from any other: made once, the same for all, and never changed."""

    async def schema_versions(self) -> SchemaVersions | None:
        """Look, without opening or changing anything. None: the store has no schema."""

    def schema_sql(self) -> str:
        """What makes the tables of a new database. `NotAvailable` where there are none."""

    # ------------------------------------------------------------ tasks come in

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store all of `tasks` or none.

        Due later than now (`run_at`, or `delay`): `scheduled`; else `ready`. A `key` that a live task of the same
        kind holds is a conflict, also within the list: `return` answers with that task; `replace` puts the new
        payload, options and due time into it, keeping its id, if it is not running; `raise`, and `replace` of a
        running task, raise `KeyConflict` and store nothing of this call.
        """

    async def announce_queues(self, queues: Iterable[str]) -> None:
        """Make queues known before tasks in them come by way of a caller's transaction: the first task of a queue
        must not keep everybody else who uses the queue waiting for that transaction's end."""

    async def insert_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """The same inside the caller's own transaction on `connection`, which the caller commits or rolls back.

        Raises `NotAvailable` where the store cannot, `OptionError` if the connection is not one of this database
        or has no transaction open. What the connection itself raises is the caller's.
        A store in which others would wait for such a transaction does not put tasks in line there: they are
        `scheduled`, due at once, and the next `wake` does it.
        """

    def insert_on_sync(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """The same for callers without a loop, on the thread that the connection belongs to; `OptionError` if the
        connection would have to be awaited."""

    async def listen(self, on_kinds: Callable[[Iterable[str] | None], None]) -> None:
        """Tell the kinds of tasks that callers' transactions brought, as they are committed; None: any kind.

        Goes on until it is cancelled; raises `StoreUnavailable` when it can hear no more. Only if it `listens`.
        """

    # ------------------------------------------------------------ tasks run

    async def claim(self, request: ClaimRequest) -> Claims:
        """Take ready tasks: `ready` → `running`, `claim_no + 1`, `attempts + 1`, owner and start time set.

        Takes the first tasks in order among the asked kinds and queues, without paused queues and without tasks
        whose `expires_at` has come. Returns them in that order. Raises `LeaseLost` if the node has no live lease.

        Where a kind request names limits or a provider, a task is claimed only if all of them have a permit for it, and
        it is given its server and slot (`stores.rules.shared_capacity`). Permits are counted and taken under locks, so
        that no limit is exceeded. A kind without a free permit does not hold up others. Commands are claimed first.
        Starts of kinds with a rate are charged to the rate of their key queue.

        A task is claimed only if it fits the node, in the order of `claim_order` (`stores.node_capacity`). Ready tasks
        are indexed by kind, queue and requirements; of a ready group that does not fit only the first task is read.

        Reservation. A node reserves capacity for at most one task. Without `reserved_task` the claim reserves for the
        first task in order that could run here later, has been due for `patience`, has its limits free and is not
        reserved by another live, uncordoned node; the claim then takes nothing more and says so (`Claims.reserved`).
        With `reserved_task` no other is chosen. The reservation is renewed for `reserve_microseconds` if all of this
        holds: the task is ready, its kind is requested (a count of 0 will do), its queue is served and not paused, it
        has not expired, its limits and servers are free, and no other live node has reserved it. Otherwise, and if
        `reserve_microseconds` is 0, the reservation is dropped. A reserved task goes before all but commands and urgent
        tasks. A cordoned node gets nothing.
        """

    async def look(self, look: CandidateQuery) -> list[TaskRecord]:
        """Ready tasks that a claim might take, without taking them; in order, not from paused queues, not expired."""

    async def ahead(self, task_id: int, limit: int) -> int | None:
        """How many tasks of its kind, in its state, and in its line if it is in one, go before this `ready` or
        `waiting` task; not counted past `limit`. None: it is neither."""

    async def next_start(self, kind: str, limit_key: str) -> int | None:
        """What the rate of a line remembers (`rates`): when its next start would be on time; None: nothing."""

    async def finish(self, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        """Settle attempts. Each matches `(id, claim_no, running)`, or changes nothing and has the verdict None.

        Succeeded → `succeeded`, with its result, and its children inserted (conflicts of their keys: `return`).
        Failed → `failed` with its reason, error appended. Retrying → `scheduled` (`ready` if the delay is 0), error
        appended. Snoozed → the same without error, `attempts - 1`. Cancelled → `cancelled`. HandedBack → `ready`,
        `attempts - 1`, spared for as long as it says or as it was, whichever is longer. Crashed → error appended,
        `attempts - 1`, `crashes + 1`, then `ready`, or `failed` with reason `crashed` at `CRASH_LIMIT`. With a cancel
        on record every one of these ends `cancelled`.
        Lined → the attempt is given back, and the task stands in that line from now on. A command that is handed back
        or crashes ends `failed`, reason `crashed`: it is never run twice. A settlement that names a server counts for
        that server's health: after `backoff_after` failures in a row it backs off, doubling, until a success.
        A settlement that was already applied (the answer was lost) gets its verdict again. Children are not
        inserted twice. A row that could not be written does not fail its neighbours.
        """

    async def exchange(self, outcomes: Sequence[FencedOutcome], request: ClaimRequest) -> tuple[list[Verdict], Claims]:
        """`finish`, then `claim`, in one transaction: what the outcomes free can be claimed with the same commit.

        If it raises, neither has happened, or its answer was lost: the outcomes are to be finished again.
        """

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        """Write progress and overdue marks of running attempts; False: stale."""

    async def begin(self, hold_seconds: float) -> TaskTransaction:
        """A transaction for a body, rolled back if it is held for longer. `NotAvailable` where the store has none."""

    async def cancel_requests(self, node_id: str) -> list[int]:
        """The running tasks of this node that somebody wants cancelled."""

    # ------------------------------------------------------------ time and death

    async def wake(self, limit: int) -> Woken:
        """Make at most `limit` due tasks ready and end at most `limit` expired ones; tell when to look again.

        `next_in` is 0 if more are due already; the end of a server's rest is a moment to look again, too. Expiry ends
        waiting, scheduled and ready tasks, in paused queues too.
        """

    async def reap(self, gone: Sequence[str], limit: int) -> list[Reaped]:
        """Take at most `limit` running tasks from dead nodes, and remove the rows of dead nodes that hold none.

        Dead is a node without a row, one whose lease is over by the store's clock, and any named in `gone` (their
        processes were seen dead). Re-checked in the statement that takes. `attempts - 1`, `crashes + 1`, an error
        appended; then `ready`, `failed`/`crashed` at `CRASH_LIMIT` (a command: at the first), or `cancelled` if that
        was asked. A node whose row says that it was stopping charges no crash and leaves no error, except to a
        command, which is never run twice.
        """

    async def prune(self, cutoffs: Cutoffs, limit: int) -> int:
        """Delete at most `limit` ended tasks that are older than the cutoff of their state, and at most `limit` orders
        that are older than theirs; how many tasks it were."""

    # ------------------------------------------------------------ nodes

    async def register(self, node: NewNode) -> None:
        """Make the node known, with a lease from now."""

    async def keeper(self) -> LeaseKeeper:
        """A path for renewing leases. Call it on the thread and loop that will use it."""

    async def unregister(self, node_id: str) -> None:
        """Forget the node. Tasks that it still holds are then anybody's to reap."""

    async def nodes(self) -> list[NodeRecord]:
        """All registered nodes, dead ones that nobody reaped yet included."""

    async def running_by_node(self) -> dict[str, int]:
        """How many tasks each node holds, by its id, without zeros; those of nodes that have no row included."""

    # ------------------------------------------------------------ operations

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """Not running: → `cancelled` at once. Running: the wish is recorded and sticks. Final: nothing is done."""

    async def retry(self, ids: Sequence[int]) -> list[Moved]:
        """Final → `ready`, same id, place and `claim_no`; attempts, crashes, expiry and cancel wish are reset, the
        result and progress cleared, the list of errors kept. Not done if a live task holds the key."""

    async def delete(self, ids: Sequence[int]) -> list[Moved]:
        """Remove tasks that are not running, live or final, without a trace. Done: `state` is None."""

    async def reschedule(self, changes: Sequence[Rescheduling]) -> list[Moved]:
        """Change when `scheduled` or `ready` tasks are due; they become `scheduled` or `ready` accordingly."""

    async def set_priority(self, changes: Sequence[Reprioritizing]) -> list[Moved]:
        """Change the priority of tasks that are live and not running."""

    async def pause(self, queues: Sequence[str]) -> list[bool]:
        """Let nobody claim from these queues, until resumed; False: it was paused already."""

    async def resume(self, queues: Sequence[str]) -> list[bool]:
        """Undo `pause`; False: it was not paused."""

    # ------------------------------------------------------------ limits, servers, groups, orders

    async def declare(self, declared: Sequence[NewLimit], providers: Sequence[NewProvider]) -> None:
        """What the code says of them. Only what it says otherwise than at its last declaration changes anything: what
        an operator has set since stays in force."""

    async def set_limit(self, name: str, value: int | None) -> bool:
        """For everybody, from now on; False: nobody has declared it. Running work goes on."""

    async def limits(self) -> list[LimitRecord]:
        """All limits, by name."""

    async def set_servers(self, provider: str, pool: Sequence[NewServer]) -> bool:
        """The pool from now on; False: nobody has declared the provider. What runs on a server that is gone finishes;
        commands that wait for one end `failed`, reason `error`. A server that stays keeps its health, one that comes
        back later is new."""

    async def servers(self) -> list[ServerRecord]:
        """All servers, by provider and address, and removed ones that still have work."""

    async def open_group(self, group: NewGroup) -> OpenedGroup:
        """Store a group and its tasks, all or nothing. One without tasks has ended at once."""

    async def groups(self, ids: Sequence[int]) -> list[GroupRecord | None]:
        """These groups, counted from their rows."""

    async def cancel_group(self, group_id: int, why: str | None = None) -> list[Moved]:
        """`cancel` for all of its tasks that have not ended."""

    async def act(self, order: NewAction) -> AuditRecord:
        """Do it and write down that it was done, in one transaction; `cordon`, `uncordon`, `drain`, `restart` and
        `stop` are recorded for the node that they name, whose row says at once whether it is cordoned. An action that
        makes no sense changes nothing and is recorded, too (`outcome` says why), as is one for a node that does not
        exist or whose lease is over, and one that comes with its `rejection`. Texts: `stores.rules.action_texts`."""

    async def audit(self, limit: int = 100, node_id: str | None = None) -> list[AuditRecord]:
        """The latest, newest first; with `node_id` those that this node has not carried out yet, oldest first."""

    async def action_done(self, action_id: int, outcome: str) -> bool:
        """The node has carried it out; False: somebody said so already."""

    # ------------------------------------------------------------ reading

    async def get(self, ids: Sequence[int]) -> list[TaskRecord | None]:
        """These tasks, live or final; None where there is none."""

    async def list_tasks(self, query: TaskQuery) -> TaskPage:
        """Tasks that match, newest id first, one page."""

    async def endings(
        self, after: str | None, states: Collection[State], kinds: Collection[str] | None = None
    ) -> FinalEvents:
        """Read the ends of tasks, by these final states, from behind the cursor of an event; None: from the oldest that
        the history has, `stores.endings.NOW`: from now on. `OptionError` if it is no cursor of this kind of store.

        `kinds`: the reader is after these. Others are given as well, so that it gets on, but are no loss if pruned.
        """

    async def counts(self) -> dict[tuple[str, str, State], int]:
        """Exact numbers by (queue, kind, state), without zeros, from one snapshot; their cost does not grow with
        the history."""

    async def queues(self) -> list[QueueRecord]:
        """Every queue that ever had a task or was paused, by name, with its counts."""

    async def describe(self) -> dict[str, str]:
        """Facts for people (`synergon doctor`): versions, journal mode, size, clock."""
