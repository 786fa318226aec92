"""What a node asks a store for, and what it gets."""

from __future__ import annotations

import msgspec

from synergon.model.record import Record
from synergon.model.requirements import KIND_DEFAULT, NO_REQUIREMENTS, ONE_PROCESS, PROCESS, Requirements


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
    title: str | None = None
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
    without: frozenset[tuple[str, str]] = frozenset()
    """Lanes that are passed over, by their queue and what the rows say of their requirements."""
    limit: int = 100
