"""Records of claims: the request of a node, and the tasks that the node gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from synergon.model.record import Record
from synergon.model.requirements import KIND_DEFAULT, NO_REQUIREMENTS, ONE_PROCESS, PROCESS, UNIT, Requirements

LAST_CLAIM_NO: Final = 2**62
"""A task whose claims have reached this number is not run: a further claim could not be told from this one."""

LAST_ATTEMPT: Final = 2**31 - 1
"""Attempts are counted up to this number."""


class KindRequest(Record, frozen=True, kw_only=True):
    """The part of a claim request for one kind: how many of its tasks the node can start now, and what they need."""

    kind: str
    count: int
    limits: tuple[str, ...] = ()
    """The limits of which each task holds a permit while it runs."""
    provider: str | None = None
    """The provider on whose servers the tasks run. None if they need no server."""
    is_rated: bool = False
    """Whether the key queues of the kind have a rate."""
    is_command: bool = False
    """Whether the kind is one of commands. These precede all tasks, and do not count against `ClaimRequest.limit`."""
    requirements: Requirements = NO_REQUIREMENTS
    """The requirements of tasks that have none of their own; they include a child process if the kind runs in one."""
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
    bounds: tuple[str, ...] = ()
    """The bounds on queues and on the provider that its tasks may meet; names of `ClaimRequest.totals`."""

    @property
    def is_yielded_to(self) -> bool:
        """Whether tasks of the kind may use what running tasks would yield."""
        return self.is_urgent and not self.is_backed_off

    @property
    def needs_only_slot(self) -> bool:
        """Whether tasks without requirements of their own need nothing but a slot, and perhaps a child process."""
        return not (
            self.limits
            or self.provider
            or self.is_rated
            or self.is_command
            or self.is_urgent
            or self.only is not None
            or self.bounds
            or self.requirements not in (NO_REQUIREMENTS, ONE_PROCESS)
        )

    @property
    def is_process(self) -> bool:
        """Whether tasks without requirements of their own need a child process."""
        return PROCESS in self.requirements.cost


class ClaimRequest(Record, frozen=True, kw_only=True):
    """A node's request for tasks: at most `limit` in total, and at most `kinds[i].count` of each kind."""

    node_id: str
    kinds: tuple[KindRequest, ...]
    limit: int
    queues: frozenset[str] | None = None
    """Only tasks of these queues are claimed. None means every queue. Commands come from every queue."""
    labels: frozenset[str] = frozenset()
    totals: dict[str, int] = {}
    """The node's total of each resource, and of child processes. The total of a resource that is not named is zero."""
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

    @property
    def free_processes(self) -> int:
        """How many child processes of the node are free."""
        return max(self.free.get(PROCESS, 0), 0) // UNIT

    @property
    def open_kinds(self) -> list[KindRequest]:
        """The kind requests with a count. If a task is reserved, also those with count 0: its kind must be read so that
        the reservation is renewed."""
        least = 1 if self.reserved_task is None else 0
        return [kind_request for kind_request in self.kinds if kind_request.count >= least]

    def needs_only_slots(self, kind_requests: Iterable[KindRequest]) -> bool:
        """Whether the counts alone decide which tasks of these kinds are claimed, if no task has requirements of its
        own. False if several kinds share the free child processes, or a task is reserved."""
        if self.reserved_task is not None:
            return False
        in_processes: set[str] = set()
        for kind_request in kind_requests:
            if not kind_request.needs_only_slot:
                return False
            if kind_request.is_process:
                in_processes.add(kind_request.kind)
        return len(in_processes) <= 1 or self.free_processes <= 0

    def most_without_requirements(self, kind_request: KindRequest) -> int:
        """How many tasks of the kind could be claimed, if no task has requirements of its own and no other kind uses a
        child process."""
        return min(kind_request.count, self.free_processes) if kind_request.is_process else kind_request.count


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
    requirements: str = KIND_DEFAULT
    title: str | None = None
    server: str | None = None
    """The server on which the task runs, if its kind has a provider."""
    slot: int | None = None
    """The number of the permit that the task holds on that server. No two running tasks of a server have the same
    number."""
    protected_for: int = 0
    """For how many microseconds the task is protected from preemption."""


class CandidateQuery(Record, frozen=True, kw_only=True):
    """A query for ready tasks of a kind, in claim order."""

    kind_request: KindRequest
    queues: frozenset[str] | None = None
    labels: frozenset[str] = frozenset()
    totals: dict[str, int] = {}
    """Tasks that can never run on a node with these totals are excluded."""
    node_id: str | None = None
    """Tasks that this node has refused are excluded."""
    after: tuple[int, int] | None = None
    """Only tasks after this (priority, id) in claim order."""
    limit: int = 100


class AttemptRequest(Record, frozen=True, kw_only=True):
    """What was requested for a running attempt since its claim."""

    id: int
    cancel_requested: bool = False
    extended_by: int | None = None
    """How many microseconds its timeout was extended by, in total."""
