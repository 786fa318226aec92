"""Plain records that cross the borders between rooms. They hold no behaviour beyond reading themselves.

They are `msgspec` structs: frozen, slotted, cheap to make on the hot path, and JSON for `--json` at no cost.
Inside the engine times are whole microseconds since 1970 by the store's clock; records for users hold aware
datetimes.

Long, because it is the one vocabulary of tasks, from their call to their history; nodes, limits, orders and events have
records of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from synergon.demands import A_PROCESS, AS_THE_KIND_SAYS, NOTHING, PROCESS, Demand
from synergon.lifecycle import Reason, State

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(microseconds: int) -> datetime:
    """The moment as an aware datetime, exact to the microsecond."""
    return EPOCH + timedelta(microseconds=microseconds)


def from_datetime(moment: datetime) -> int:
    """The aware datetime as whole microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def storable(text: str) -> str:
    """Text may hold half a character, which no database takes."""
    return text.encode(errors="backslashreplace").decode()


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What every record has in common. None holds itself, so the collector of cycles need not look at them."""


# ---------------------------------------------------------------- what goes into a store

OnConflict = Literal["return", "raise", "replace"]


class NewTask(Record, frozen=True, kw_only=True):
    """A task that is not stored yet."""

    kind: str
    queue: str = "default"
    payload: bytes = b"{}"
    priority: int = 0
    run_at: int | None = None
    """Due at this moment; None: now, or `delay` after now."""
    delay: int | None = None
    """Microseconds after the store's now."""
    expires_in: int | None = None
    """Microseconds after the store's now; not started by then, it ends `failed` with reason `expired`."""
    max_attempts: int | None = None
    """None: the producer does not know the kind; the node that runs it does."""
    overrides: bytes | None = None
    """JSON of what this call says otherwise than its kind (`timeout`, `retry`, `runs_in`)."""
    key: str | None = None
    on_conflict: OnConflict = "return"
    tags: tuple[str, ...] = ()
    meta: bytes | None = None
    """JSON object."""
    origin: str | None = None
    """The engine that is told when the task has ended."""
    limit_key: str | None = None
    """The line of its kind that it stands in: of each line only so many are `ready` or `running` at once, and the rest
    are `waiting`."""
    group_id: int | None = None
    """The group that has not ended before this task has."""
    after_group: int | None = None
    """`waiting` until this group has ended."""
    is_command: bool = False
    """A command: it goes ahead of every task, and once it has started it is never run again."""
    provider: str | None = None
    """The provider that a command is for; so that the commands for a server that is taken away can be found."""
    target: str | None = None
    """Only this server will do."""
    demand: str = AS_THE_KIND_SAYS
    """The text of what it demands of a node (`demands.Demand`)."""


class Insertion(msgspec.Struct, frozen=True):
    """What became of one NewTask: the id of the task that now stands for it."""

    id: int
    created: bool
    """False: a live task held the key, and `id` is that task (replaced, if that was asked)."""
    state: State


# ---------------------------------------------------------------- claims


class Room(Record, frozen=True, kw_only=True):
    """How many tasks of one kind a node could start now."""

    kind: str
    count: int
    limits: tuple[str, ...] = ()
    """Each task holds one place in every one of these while it runs."""
    provider: str | None = None
    """Each task runs on a server of this one."""
    is_rated: bool = False
    """Its lines let only so many start in a given time."""
    is_command: bool = False
    """These go ahead of all that are not, and do not count against `ClaimRequest.limit`."""
    demand: Demand = NOTHING
    """What those of its tasks demand whose rows say nothing, a child process included."""
    rank: int = 0
    """At equal priority tasks of a lower rank go first: the end of a pipeline before its beginning."""
    is_urgent: bool = False
    """These go first, and count what others would yield as free, slots beyond `ClaimRequest.limit` included."""
    is_resting: bool = False
    """Nobody yields to these for a while, however urgent they are."""
    is_brief: bool = False
    """They end before the task starts for which room is kept, and may use that room until then."""
    only: tuple[int, ...] | None = None
    """Only these tasks: the node has looked at them and accepts them."""

    @property
    def is_yielded_to(self) -> bool:
        """Whether its tasks may count on what others would yield."""
        return self.is_urgent and not self.is_resting

    @property
    def is_free(self) -> bool:
        """Whether its tasks, if their rows demand nothing, need nothing but a slot of the node, and perhaps one of its
        child processes."""
        return not (
            self.limits
            or self.provider
            or self.is_rated
            or self.is_command
            or self.is_urgent
            or self.only is not None
            or self.demand not in (NOTHING, A_PROCESS)
        )

    @property
    def is_process(self) -> bool:
        """Whether its tasks, if their rows say nothing, share the node's child processes."""
        return PROCESS in self.demand.cost


class ClaimRequest(Record, frozen=True, kw_only=True):
    """What a node asks for: at most `limit` tasks in all, and at most `rooms[i].count` of each kind."""

    node_id: str
    rooms: tuple[Room, ...]
    limit: int
    queues: frozenset[str] | None = None
    """Only tasks of these queues; None: of every queue. Commands come from every queue."""
    labels: frozenset[str] = frozenset()
    totals: dict[str, int] = {}
    """What the node has of each resource, and of child processes (`demands`); of one that is not named it has none."""
    free: dict[str, int] = {}
    """What of it no running task uses; less than nothing, while an urgent one waits for others to yield."""
    yielding: dict[str, int] = {}
    """What running tasks would yield to an urgent one; as `SLOT`, how many slots beyond the limit."""
    kept_for: int | None = None
    """The task that the node keeps room for."""
    held: dict[str, int] = {}
    """How much of what is free others must leave to it; never more than it demands."""
    patience: int | None = None
    """Microseconds after which room is kept for a task that could run here and does not fit now; None: never."""
    keep_for: int = 30_000_000
    """Microseconds from now for which it is kept; 0: no longer."""
    shares: tuple[dict[str, int], ...] = ()
    """What single running tasks use of the resources; of those that use the same, one."""
    rivals: tuple[Look, ...] = ()
    """What other nodes could take of that which shares places with these; what of it is better is left a place."""
    past: frozenset[int] = frozenset()
    """Tasks to which a place was left for long enough, and is no longer."""


class Kept(Record, frozen=True, kw_only=True):
    """A task that a node keeps room for."""

    id: int
    kind: str
    demand: Demand


class Claims(list["Claim"]):
    """What a claim took, in order, and what else it found."""

    kept: Kept | None = None
    """The node keeps room for this one from now on, or still."""
    is_cordoned: bool = False
    """The node may take nothing."""
    unfit: frozenset[str] = frozenset()
    """Kinds of which something is ready that fits when more of the node is free, or when less of it is held: it is
    worth another look then."""
    left: tuple[tuple[int, str], ...] = ()
    """Tasks of other nodes, by id and kind, to which places were left that something of this one could have had."""
    unserved: frozenset[int] = frozenset()
    """Those of `ClaimRequest.past` that nobody has taken."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A task that a node has taken. `(id, claim_no)` is the fence for everything the attempt writes."""

    id: int
    claim_no: int
    kind: str
    queue: str
    payload: bytes
    attempts: int
    """This attempt's number, from 1 on."""
    max_attempts: int | None
    crashes: int
    overrides: bytes | None
    tags: tuple[str, ...]
    meta: bytes | None
    origin: str | None = None
    limit_key: str | None = None
    group_id: int | None = None
    server: str | None = None
    """The server that it was given, if its kind has a provider."""
    slot: int | None = None
    """Which of that server's places: no two running tasks of a server have the same."""
    demand: str = AS_THE_KIND_SAYS
    spared_for: int = 0
    """Microseconds for which it may not be asked to yield again."""


# ---------------------------------------------------------------- outcomes


class ErrorRecord(Record, frozen=True, kw_only=True):
    """One failed attempt."""

    attempt: int
    type: str
    message: str
    traceback: str = ""
    node_id: str | None = None
    at: datetime | None = None
    """Set by the store, by its own clock."""


class Succeeded(Record, frozen=True, kw_only=True):
    """The body returned."""

    result: bytes | None = None
    children: tuple[NewTask, ...] = ()
    """Stored together with the success, and not otherwise."""


class Failed(Record, frozen=True, kw_only=True):
    """The body failed and there is no further attempt."""

    reason: Reason
    error: ErrorRecord


class Retrying(Record, frozen=True, kw_only=True):
    """The body failed and is run again after `delay` microseconds."""

    delay: int
    error: ErrorRecord


class Snoozed(Record, frozen=True, kw_only=True):
    """The body asked to be run again after `delay` microseconds; the attempt is given back."""

    delay: int


class Cancelled(Record, frozen=True, kw_only=True):
    """The body raised `Cancel`, or ended because it was cancelled."""

    why: str | None = None


class HandedBack(Record, frozen=True, kw_only=True):
    """The node could not finish it and gives it back; the attempt is given back too."""

    spared_for: int = 0
    """Microseconds for which it may not be asked to yield again, because it just has."""


class Crashed(Record, frozen=True, kw_only=True):
    """The child process died under the body: the attempt is given back, a crash is charged."""

    error: ErrorRecord


class Lined(Record, frozen=True, kw_only=True):
    """The producer did not know in which line the task belongs, the node does: it goes back into that line, and the
    attempt is given back."""

    limit_key: str


Outcome = Succeeded | Failed | Retrying | Snoozed | Cancelled | HandedBack | Crashed | Lined


class Progress(Record, frozen=True, kw_only=True):
    """How far a body says it is."""

    fraction: float
    message: str = ""


class Settlement(Record, frozen=True, kw_only=True):
    """The outcome of one attempt, addressed by its fence."""

    id: int
    claim_no: int
    outcome: Outcome
    progress: Progress | None = None
    """The last report that was not written yet."""
    limit_key: str | None = None
    """As the claim says; so that a store knows which rows to lock first."""
    group_id: int | None = None
    """The same."""
    server: tuple[str, str] | None = None
    """The provider and the server's address, if the outcome says something about that server's health."""
    is_server_well: bool = True
    slot: int | None = None
    """Which of that server's places becomes free."""
    kind: str | None = None
    """Of a task that shares limits with others: they may start in the same step."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What the store made of a Settlement: the state it led to, or None if the claim was stale."""

    id: int
    state: State | None
    child_ids: tuple[int, ...] = ()
    kind: str | None = None
    released: tuple[str, ...] = ()
    """The kinds of tasks that were let go with the same call: they waited for groups which have ended, or in a line.
    One of its verdicts says so."""


class Report(Record, frozen=True, kw_only=True):
    """A note from a running attempt, addressed by its fence."""

    id: int
    claim_no: int
    progress: Progress | None = None
    overdue: bool = False
    """The body ran past its deadline and could not be stopped yet."""


# ---------------------------------------------------------------- moves


class Woken(Record, frozen=True, kw_only=True):
    """What a look at the clock did."""

    kinds: dict[str, int]
    """How many tasks of each kind became ready."""
    expired: tuple[int, ...] = ()
    """Tasks that ended because nobody started them in time."""
    next_in: int | None = None
    """Microseconds until the next task is due or expires; None: nothing is."""


class Moved(Record, frozen=True, kw_only=True):
    """What an operation did to one task. `state` is the one it is in now; None: there is no such task."""

    id: int
    done: bool
    """Whether the operation took effect (for a cancel of a running task: was recorded)."""
    state: State | None
    kind: str | None = None
    node_id: str | None = None
    """The node that runs it, for a cancel of a running task."""
    key_holder: int | None = None
    """A retry was refused because this live task holds the unique key."""
    group_id: int | None = None
    """The group that it has left by ending or by being deleted."""


class Reaped(Record, frozen=True, kw_only=True):
    """A task taken from a dead node."""

    id: int
    kind: str
    node_id: str
    state: State
    crashes: int
    released: tuple[str, ...] = ()
    """The kinds of other tasks that became ready with the same call: groups that waited for nothing else have ended,
    lines have moved on. The last one says so for all."""


class Rescheduling(Record, frozen=True, kw_only=True):
    """When a waiting task shall be due instead: at `run_at`, or `delay` microseconds after the store's now."""

    id: int
    run_at: int | None = None
    delay: int | None = None


class Reprioritizing(Record, frozen=True, kw_only=True):
    """Which priority a waiting task shall have instead."""

    id: int
    priority: int


class Cutoffs(Record, frozen=True, kw_only=True):
    """Ages in microseconds past which ended tasks leave the history, and orders are forgotten; None keeps them."""

    succeeded: int | None = None
    failed: int | None = None
    cancelled: int | None = None
    orders: int | None = None


# ---------------------------------------------------------------- what users see


class TaskRecord(Record, frozen=True, kw_only=True):
    """One task as the store has it."""

    id: int
    kind: str
    queue: str
    state: State
    reason: Reason | None = None
    priority: int = 0
    run_at: datetime
    attempts: int = 0
    max_attempts: int | None = None
    crashes: int = 0
    claim_no: int = 0
    node_id: str | None = None
    server: str | None = None
    enqueued_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    cancel_requested: bool = False
    overdue: bool = False
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    """The arguments, as JSON."""
    overrides: msgspec.Raw | None = None
    result: Any = None
    """The plain JSON value; `handle.result()` gives it in the type of the function's annotation."""
    errors: tuple[ErrorRecord, ...] = ()
    progress: Progress | None = None
    key: str | None = None
    limit_key: str | None = None
    group_id: int | None = None
    after_group: int | None = None
    """The group that it waits for; None as soon as that has ended."""
    is_command: bool = False
    target: str | None = None
    demand: str = AS_THE_KIND_SAYS
    """What it demands of a node, as JSON; empty: what its kind says where it runs."""
    kept_by: str | None = None
    """The node that keeps room for it."""
    tags: tuple[str, ...] = ()
    meta: dict[str, Any] = {}

    @property
    def error(self) -> ErrorRecord | None:
        """The last error, if any attempt failed."""
        return self.errors[-1] if self.errors else None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments as plain JSON values."""
        decoded: dict[str, Any] = msgspec.json.decode(self.payload)
        return decoded


class TaskQuery(Record, frozen=True, kw_only=True):
    """A filter over all tasks, newest first. `before` is the keyset cursor: only ids below it."""

    states: frozenset[State] | None = None
    kind: str | None = None
    queue: str | None = None
    tag: str | None = None
    key: str | None = None
    before: int | None = None
    limit: int = 100


class Look(Record, frozen=True, kw_only=True):
    """Which ready tasks of a kind a node wants to see, in the order in which they would be taken."""

    room: Room
    queues: frozenset[str] | None = None
    labels: frozenset[str] = frozenset()
    totals: dict[str, int] = {}
    """Tasks that could never run on a node with these are left out."""
    after: tuple[int, int] | None = None
    """Only those behind the one with this priority and id."""
    without: frozenset[tuple[str, str]] = frozenset()
    """Lanes that are passed over, by their queue and what the rows say of their demand."""
    limit: int = 100


class TaskPage(Record, frozen=True, kw_only=True):
    """One page of a listing."""

    tasks: tuple[TaskRecord, ...]
    next: int | None = None
    """Give this as `before` for the next page; None: this was the last."""

    def __iter__(self) -> Iterator[TaskRecord]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> TaskRecord:
        return self.tasks[index]


class QueueRecord(Record, frozen=True, kw_only=True):
    """A queue, and how many tasks of it are in each state."""

    name: str
    paused_at: datetime | None = None
    counts: dict[State, int] = {}

    @property
    def is_paused(self) -> bool:
        """Whether no node may claim from it."""
        return self.paused_at is not None
