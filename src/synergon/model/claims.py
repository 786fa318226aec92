"""Records of claims: the request of a node, and the tasks that the node gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from synergon.model.record import Record
from synergon.model.requirements import (
    KIND_DEFAULT,
    NO_REQUIREMENTS,
    ONE_PROCESS,
    ONE_THREAD,
    PROCESS,
    THREAD,
    UNIT,
    Requirements,
)

LAST_CLAIM_NO: Final = 2**62
"""A task whose `claim_no` has reached this number is not run, because its next claim could not be distinguished from
this one."""

LAST_ATTEMPT: Final = 2**31 - 1
"""Attempts are counted up to this number."""


NOT_DEFERRED: Final[Mapping[str, int]] = MappingProxyType({})


class KindRequest(Record, frozen=True, kw_only=True):
    """The part of a claim request for one kind: how many of its tasks the node can start now, and what they need."""

    kind: str
    count: int
    limits: tuple[str, ...] = ()
    """The limits whose permits each task holds while it runs."""
    provider: str | None = None
    """The provider on whose servers the tasks run. None if they need no server."""
    is_rated: bool = False
    """Whether the key queues of the kind have a rate."""
    is_command: bool = False
    """Whether the tasks of the kind are commands. Commands precede all tasks, and do not count against
    `ClaimRequest.limit`."""
    requirements: Requirements = NO_REQUIREMENTS
    """The requirements of tasks that have none of their own; they include the child process or the thread that the
    kind runs in."""
    is_threaded: bool = False
    """The task function runs in a thread, unless it runs in a child process."""
    rank: int = 0
    """At equal priority, tasks of a lower rank come first: the end of a pipeline before its beginning."""
    is_urgent: bool = False
    """Whether the kind is urgent. Its tasks come first, and may use what running tasks would yield, including slots
    beyond `ClaimRequest.limit`."""
    is_backed_off: bool = False
    """Whether preemption for this kind backs off: no task yields to it for a while."""
    is_brief: bool = False
    """Whether tasks of the kind end before the reserved task can start, so that they may use the capacity held for
    it."""
    only: tuple[int, ...] | None = None
    """Only these tasks: `can_accept` has accepted them."""
    is_isolable: bool = True
    """The task function can run in a child process. Otherwise a suspect runs alone on the node."""
    is_fair: bool = False
    """Whether the tenants of the kind take turns."""
    bounds: tuple[str, ...] = ()
    """The bounds on queues and on the provider that may apply to its tasks, by their names in `ClaimRequest.totals`."""
    ahead: int = 0
    """How many tasks the node takes beyond its free child processes, because they are short. Tasks with requirements of
    their own are not taken ahead, nor are tasks beside them."""
    batch_size: int = 0
    """How many tasks of one key queue the node runs together, as one execution. 0 if each runs alone."""

    @property
    def is_yielded_to(self) -> bool:
        """Whether tasks of the kind may use what running tasks would yield."""
        return self.is_urgent and not self.is_backed_off

    @property
    def needs_only_slot(self) -> bool:
        """Whether tasks without requirements of their own need nothing but a slot, and perhaps a child process or a
        thread."""
        return not (
            self.limits
            or self.provider
            or self.is_rated
            or self.is_command
            or self.is_urgent
            or self.only is not None
            or self.bounds
            or self.batch_size
            or self.requirements not in (NO_REQUIREMENTS, ONE_PROCESS, ONE_THREAD)
        )

    @property
    def is_process(self) -> bool:
        """Whether tasks without requirements of their own need a child process."""
        return PROCESS in self.requirements.cost

    @property
    def executes_in(self) -> str | None:
        """What tasks without requirements of their own run in: `PROCESS`, `THREAD`, or None for the event loop."""
        cost = self.requirements.cost
        return PROCESS if PROCESS in cost else THREAD if THREAD in cost else None


class ClaimRequest(Record, frozen=True, kw_only=True):
    """A node's request for tasks: at most `limit` in total, and at most `kinds[i].count` of each kind."""

    node_id: str
    kinds: tuple[KindRequest, ...]
    limit: int
    queues: frozenset[str] | None = None
    """Only tasks of these queues are claimed. None means every queue. Commands come from every queue."""
    labels: frozenset[str] = frozenset()
    totals: dict[str, int] = {}
    """The node's total of each resource, of child processes and of threads. The total of a resource that is not named
    is zero."""
    free: dict[str, int] = {}
    """The amounts that no running task uses. Negative while an urgent task waits for others to yield."""
    yielding: dict[str, int] = {}
    """What running tasks would yield to an urgent task. Under `SLOT`: how many slots beyond the limit."""
    reserved_task: int | None = None
    """The task for which the node has reserved capacity. None if there is none."""
    held: dict[str, int] = {}
    """The part of the free amounts that is held for the reserved task. Never more than the task requires."""
    patience: int | None = None
    """How many microseconds a task that does not fit must have waited before capacity is reserved for it. None means
    never."""
    reserve_microseconds: int = 30_000_000
    """For how many microseconds from now the reservation holds. 0 drops it."""
    shares: tuple[dict[str, int], ...] = ()
    """The distinct costs of running tasks."""
    hopeless: frozenset[tuple[str, tuple[str, ...]]] = frozenset()
    """The kinds and refusing nodes of tasks that all live nodes have refused. The store sets it: the node may take such
    a task again, and its refusal ends the task."""

    def free_units(self, name: str) -> int:
        """How many child processes (`PROCESS`) or threads (`THREAD`) of the node are free, and how many tasks it takes
        ahead."""
        ahead = min((kind.ahead for kind in self.kinds if kind.executes_in == name), default=0)
        return max(self.free.get(name, 0), 0) // UNIT + ahead

    @property
    def open_kinds(self) -> list[KindRequest]:
        """The kind requests with a count. If a task is reserved, also those with count 0: its kind must be read so that
        the reservation is renewed."""
        least = 1 if self.reserved_task is None else 0
        return [kind_request for kind_request in self.kinds if kind_request.count >= least]

    def by_slots_alone(self, kind_requests: Iterable[KindRequest]) -> ClaimRequest | None:
        """The request for these kinds, with counts and a limit that alone decide which tasks are claimed, provided that
        no task has requirements of its own.

        None if counts and a limit do not suffice: because of limits, resources, a reservation, free child processes or
        threads that several kinds share, or, beside other kinds, a kind whose tenants take turns. Threads do not matter
        if there are at least as many as slots, or if all kinds run in threads.
        """
        if self.reserved_task is not None:
            return None
        sharing: dict[str | None, set[str]] = {}
        kinds = tuple(kind_requests)
        if len(kinds) > 1 and any(kind.is_fair for kind in kinds):
            return None
        for kind in kinds:
            if not kind.needs_only_slot:
                return None
            sharing.setdefault(kind.executes_in, set()).add(kind.kind)
        limit, most = self.limit, dict[str | None, int]()
        for name, of_kinds in sharing.items():
            if name is None or (free := self.free_units(name)) >= self.limit:
                continue
            most[name] = free
            if len(of_kinds) > 1 and free > 0:
                if len(sharing) > 1:
                    return None
                limit = free
        if most:
            kinds = tuple(
                replace(kind, count=min(kind.count, most.get(kind.executes_in, kind.count))) for kind in kinds
            )
        return replace(self, kinds=kinds, limit=limit)


class ReservedTask(Record, frozen=True, kw_only=True):
    """A task for which a node has reserved capacity."""

    id: int
    kind: str
    requirements: Requirements


class Claims(list["Claim"]):
    """The tasks that a claim took, in claim order, with the reservation and other findings."""

    reserved: ReservedTask | None = None
    """The task for which the node has reserved capacity, newly or from an earlier claim. None if there is none."""
    is_cordoned: bool = False
    """Whether the node is cordoned, so that it may claim nothing."""
    unfit: frozenset[str] = frozenset()
    """Kinds with ready tasks that do not fit now, but fit when more capacity is free. The node requests them again
    then."""
    more: frozenset[str] = frozenset()
    """Kinds with another batch that became ready in this claim. The node requests them again at once."""
    deferred: Mapping[str, int] = NOT_DEFERRED
    """Kinds whose tasks the rate of a limit defers, and for how many microseconds. The node requests them again
    then."""


class DryRun(Record, frozen=True, kw_only=True):
    """What a claim would do with a task."""

    is_taken: bool
    reserved: int | None = None
    """The task for which the claim would reserve capacity, because it does not fit. The claim would take no later
    task."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A claimed task. `(id, claim_no)` is the fence for everything that the attempt writes."""

    id: int
    claim_no: int
    kind: str
    queue: str
    payload: bytes
    attempts: int
    """The number of this attempt, from 1 on."""
    max_attempts: int | None
    overrides: bytes | None
    tags: tuple[str, ...]
    meta: bytes | None
    origin: str | None = None
    limit_key: str | None = None
    group_id: int | None = None
    has_dependencies: bool = False
    has_dependents: bool = False
    requirements: str = KIND_DEFAULT
    title: str | None = None
    batch_id: int | None = None
    """The leader of the batch that the task runs in: the task that holds the slot and the permits for all. None if the
    task runs alone."""
    server: str | None = None
    """The server on which the task runs, if its kind has a provider."""
    slot: int | None = None
    """The number of the permit that the task holds on that server. No two running tasks of a server have the same
    number."""
    protected_for: int = 0
    """For how many microseconds the task is protected from preemption."""
    waited: int = 0
    """How many microseconds passed between the moment at which the task was due and the claim."""

    @property
    def is_member(self) -> bool:
        """Whether another task holds the slot and the permits for this one."""
        return self.batch_id is not None and self.batch_id != self.id


class CandidateQuery(Record, frozen=True, kw_only=True):
    """A query for ready tasks of a kind, in claim order."""

    kind_request: KindRequest
    queues: frozenset[str] | None = None
    labels: frozenset[str] = frozenset()
    totals: dict[str, int] = {}
    """Tasks that can never run on a node with these totals are excluded."""
    node_id: str | None = None
    """Tasks that this node has refused are excluded."""
    after: tuple[int, int, int] | None = None
    """Only tasks after this (priority, fair tag, id) in claim order."""
    limit: int = 100


class AttemptRequest(Record, frozen=True, kw_only=True):
    """What was requested for a running attempt since its claim."""

    id: int
    cancel_requested: bool = False
    extended_by: int | None = None
    """How many microseconds its timeout was extended by, in total."""
