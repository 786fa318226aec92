"""What a node asks a store for, and what it gets."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from synergon.model.record import Record
from synergon.model.requirements import KIND_DEFAULT, NO_REQUIREMENTS, ONE_PROCESS, PROCESS, UNIT, Requirements


class KindRequest(Record, frozen=True, kw_only=True):
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
    requirements: Requirements = NO_REQUIREMENTS
    """The requirements of its tasks whose rows have none of their own, a child process included."""
    rank: int = 0
    """At equal priority tasks of a lower rank go first: the end of a pipeline before its beginning."""
    is_urgent: bool = False
    """These go first, and count what others would yield as free, slots beyond `ClaimRequest.limit` included."""
    is_backed_off: bool = False
    """Nobody yields to these for a while, however urgent they are."""
    is_brief: bool = False
    """They end before the task starts for which room is kept, and may use that room until then."""
    only: tuple[int, ...] | None = None
    """Only these tasks: the node has looked at them and accepts them."""

    @property
    def is_yielded_to(self) -> bool:
        """Whether its tasks may count on what others would yield."""
        return self.is_urgent and not self.is_backed_off

    @property
    def is_free(self) -> bool:
        """Whether its tasks, if their rows require nothing, need nothing but a slot of the node, and perhaps one of its
        child processes."""
        return not (
            self.limits
            or self.provider
            or self.is_rated
            or self.is_command
            or self.is_urgent
            or self.only is not None
            or self.requirements not in (NO_REQUIREMENTS, ONE_PROCESS)
        )

    @property
    def is_process(self) -> bool:
        """Whether its tasks, if their rows say nothing, share the node's child processes."""
        return PROCESS in self.requirements.cost


class ClaimRequest(Record, frozen=True, kw_only=True):
    """What a node asks for: at most `limit` tasks in all, and at most `kind_requests[i].count` of each kind."""

    node_id: str
    kinds: tuple[KindRequest, ...]
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
    reserved_task: int | None = None
    """The task that the node keeps room for."""
    held: dict[str, int] = {}
    """How much of what is free others must leave to it; never more than it demands."""
    patience: int | None = None
    """Microseconds after which room is kept for a task that could run here and does not fit now; None: never."""
    reserve_microseconds: int = 30_000_000
    """Microseconds from now for which it is kept; 0: no longer."""
    shares: tuple[dict[str, int], ...] = ()
    """What single running tasks use of the resources; of those that use the same, one."""

    @property
    def free_processes(self) -> int:
        """How many child processes of the node are free."""
        return max(self.free.get(PROCESS, 0), 0) // UNIT

    @property
    def open_kinds(self) -> list[KindRequest]:
        """The kinds of which a task may be claimed. The kind of the reserved task is among them even if it has no slot:
        the reservation is renewed."""
        least = 1 if self.reserved_task is None else 0
        return [kind_request for kind_request in self.kinds if kind_request.count >= least]

    def needs_only_slots(self, kind_requests: Iterable[KindRequest]) -> bool:
        """Whether counts alone decide which tasks of these kinds are claimed, if their rows have no requirements. Child
        processes need a plan only if several kinds share them."""
        if self.reserved_task is not None:
            return False
        in_processes: set[str] = set()
        for kind_request in kind_requests:
            if not kind_request.is_free:
                return False
            if kind_request.is_process:
                in_processes.add(kind_request.kind)
        return len(in_processes) <= 1 or self.free_processes <= 0

    def most_without_requirements(self, kind_request: KindRequest) -> int:
        """How many tasks of the kind could be claimed, if their rows have no requirements and no other kind takes a
        child process."""
        return min(kind_request.count, self.free_processes) if kind_request.is_process else kind_request.count


class ReservedTask(Record, frozen=True, kw_only=True):
    """A task that a node keeps room for."""

    id: int
    kind: str
    requirements: Requirements


class Claims(list["Claim"]):
    """What a claim took, in order, and what else it found."""

    reserved: ReservedTask | None = None
    """The node keeps room for this one from now on, or still."""
    is_cordoned: bool = False
    """The node may take nothing."""
    unfit: frozenset[str] = frozenset()
    """Kinds of which something is ready that fits when more of the node is free, or when less of it is held: it is
    worth another look then."""


class DryRun(Record, frozen=True, kw_only=True):
    """What a claim would do with a task."""

    is_taken: bool
    reserved: int | None = None
    """The claim would end at this task, which does not fit: it would reserve capacity for it."""


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
    requirements: str = KIND_DEFAULT
    server: str | None = None
    """The server that it was given, if its kind has a provider."""
    slot: int | None = None
    """Which of that server's places: no two running tasks of a server have the same."""
    protected_for: int = 0
    """Microseconds for which it may not be asked to yield again."""


class CandidateQuery(Record, frozen=True, kw_only=True):
    """Which ready tasks of a kind a node wants to see, in the order in which they would be taken."""

    kind_request: KindRequest
    queues: frozenset[str] | None = None
    labels: frozenset[str] = frozenset()
    totals: dict[str, int] = {}
    """Tasks that could never run on a node with these are left out."""
    after: tuple[int, int] | None = None
    """Only those behind the one with this priority and id."""
    limit: int = 100
