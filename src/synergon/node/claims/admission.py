"""How many tasks of each kind may start here now, and what the node says of itself when it asks for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from synergon.model.claims import CandidateQuery, ClaimRequest, Claims, KindRequest, ReservedTask
from synergon.model.node_status import FreeSlots, KindStatus
from synergon.model.requirements import KIND_DEFAULT, NO_REQUIREMENTS, SLOT, is_suitable
from synergon.node.capacity.preemption import Preemption
from synergon.node.capacity.reservation import PATIENCE_SECONDS, Reservation
from synergon.node.claims.fairness import Fairness
from synergon.node.claims.ledger import Ledger
from synergon.options.durations import microseconds
from synergon.options.pipelines import ranks
from synergon.stores.rules.node_capacity import requirements_of
from synergon.task import AnyTask


class Admission:
    """Turns free capacity into a claim request. It asks for nothing that could not start at once; but for an old task
    that does not fit it keeps room (`Reservation`)."""

    def __init__(
        self,
        kinds: Mapping[str, AnyTask],
        ledger: Ledger,
        queues: frozenset[str] | None,
        *,
        labels: frozenset[str] = frozenset(),
        reservation: Reservation | None = None,
        preemption: Preemption | None = None,
        most_at_once: int | None = None,
    ) -> None:
        self._kinds = kinds
        self._ledger = ledger
        self._queues = queues
        self.labels = labels
        self.is_open = True
        """Whether the scheduler may claim; it sets this."""
        self._reservation = reservation
        self._preemption = preemption
        self._most_at_once = most_at_once or ledger.concurrency
        """No claim asks for more than this."""
        order = ranks(kinds)
        self._kind_requests = {kind: _kind_request(task_type, order[kind]) for kind, task_type in kinds.items()}
        self._fairness = Fairness({kind: kind_status(self._kind_requests[kind], kinds[kind]) for kind in kinds}, ledger)
        self._slot_only = frozenset(
            kind
            for kind, kind_request in self._kind_requests.items()
            if kind_request.is_free and kind_request.requirements == NO_REQUIREMENTS
        )
        """Kinds that declare nothing which a task of theirs needs beside a slot."""
        self._unbounded = frozenset(kind for kind in self._slot_only if kinds[kind].policy.max_running is None)
        """Those of them that may use every slot of the node."""
        self.process_kinds = frozenset(
            kind for kind, kind_request in self._kind_requests.items() if kind_request.is_process
        )
        """Kinds whose tasks share the node's child processes."""
        self._has_preemption = preemption is not None and preemption.is_needed

    def serves(self, kind: str, queue: str | None) -> bool:
        """Whether tasks of this lane run here; a queue that nobody knows might be another one."""
        return kind in self._kinds and (self._queues is None or queue in self._queues)

    def kinds(self) -> Iterator[tuple[KindRequest, AnyTask]]:
        """What there is to say of each kind; how much room there is for it is not in there."""
        return ((self._current_request(kind), task_type) for kind, task_type in self._kinds.items())

    def request(self, node_id: str, wanted: Collection[str]) -> ClaimRequest | None:
        """The claim request for the wanted kinds. None: there is no capacity for any of them, or a preempted task is
        to have its slot back first."""
        if self._has_preemption and self._preemption is not None and self._preemption.is_anybody_returning:
            return None
        kind_requests = self._with_capacity(wanted)
        if not kind_requests:
            return None
        reservation, ledger = self._reservation, self._ledger
        request = ClaimRequest(
            node_id=node_id,
            kinds=tuple(kind_requests),
            limit=min(max(ledger.free, 0), self._most_at_once),
            queues=self._queues,
            labels=self.labels,
            totals=ledger.totals,
            free=ledger.unpromised,
            yielding=self._yielding(kind_requests) if self._has_preemption else {},
            patience=None if reservation is None else microseconds(reservation.patience_seconds),
            reserve_microseconds=0 if reservation is None else reservation.keep_for,
            shares=ledger.shares,
        )
        if reservation is not None and (reservation.reserved is not None or reservation.let_go is not None):
            request = reservation.honoured(request, self)
        return request

    def _with_capacity(self, wanted: Collection[str]) -> list[KindRequest]:
        """What to ask for of the wanted kinds. All are asked for together, so that the claim takes them in their
        order; what they share of the node is in the request, and the claim takes no more of it than there is."""
        kind_requests = [kind_request for kind in wanted if (kind_request := self.counted(kind)).count > 0]
        return (
            [kind_request for kind_request in self._fairness.share(kind_requests) if kind_request.count > 0]
            if self._fairness.is_needed
            else kind_requests
        )

    def _yielding(self, kind_requests: Collection[KindRequest]) -> dict[str, int]:
        """What running tasks would yield to those of the rooms that are urgent. A kind that rests takes nothing from
        the others: its own room says that it is offered nothing."""
        return self._offered() if any(kind_request.is_yielded_to for kind_request in kind_requests) else {}

    def _offered(self) -> dict[str, int]:
        """Of the slots that running tasks would yield, those are spoken for that were promised to others before."""
        if self._preemption is None:
            return {}
        offered = self._preemption.offered
        slots = max(offered[SLOT] + min(self._ledger.free, 0), 0)
        return {SLOT: slots} | {name: offered[name] for name in self._ledger.totals}

    def look(self, kind: str, after: tuple[int, int] | None, limit: int) -> CandidateQuery:
        """The same for a node that wants to see candidates of a kind before it claims them."""
        return CandidateQuery(
            kind_request=self._kind_requests[kind],
            queues=self._queues,
            labels=self.labels,
            totals=self._ledger.totals,
            after=after,
            limit=limit,
        )

    def counted(self, kind: str) -> KindRequest:
        """The kind request for as many as could start now."""
        return msgspec.structs.replace(self._current_request(kind), count=max(self.free_count(kind), 0))

    def _current_request(self, kind: str) -> KindRequest:
        kind_request = self._kind_requests[kind]
        if kind_request.is_urgent and self._preemption is not None and self._preemption.backoff_for(kind):
            return msgspec.structs.replace(kind_request, is_backed_off=True)
        return kind_request

    def has_capacity(self, kind: str) -> bool:
        """Whether a task of this kind, of any kind there is, could start now."""
        return kind in self._kinds and self.expected(kind) > 0

    def has_any_capacity(self, kind: str | None) -> bool:
        """The same; None: whether there is a slot at all."""
        return self._ledger.free > 0 if kind is None else self.has_capacity(kind)

    def free_count(self, kind: str) -> int:
        """How many tasks of this kind could start now, as far as slots and its own limit go; an urgent one where others
        yield."""
        return self._ledger.free if kind in self._unbounded else self.free_slots(kind).free

    def free_slots(self, kind: str) -> FreeSlots:
        """The same, by what there are slots for (`node_status.free_slots_on` says it of nodes elsewhere)."""
        task_type = self._kinds[kind]
        policy, ledger = task_type.policy, self._ledger
        free = ledger.commands_free if task_type.is_command else ledger.free
        if policy.urgent and self._preemption is not None:
            free += self._preemption.yielding(kind)[SLOT]
        return FreeSlots(free, None if policy.max_running is None else policy.max_running - ledger.count(kind))

    def expected(self, kind: str, text: str = KIND_DEFAULT) -> int:
        """How many tasks of this kind, with these requirements, could start now without preempting anything:
        free capacity on another node is better."""
        free = self.free_count(kind)
        if kind in self._slot_only and text == KIND_DEFAULT:
            return free
        requirements = requirements_of(self._kind_requests[kind], text)
        if self._kinds[kind].policy.urgent:
            free = min(free, self._ledger.free)
        if requirements == NO_REQUIREMENTS:
            return free
        if not is_suitable(requirements, self.labels, self._ledger.totals):
            return 0
        available = self._ledger.unpromised
        return min([free, *(available[name] // amount for name, amount in requirements.cost.items())])

    # ------------------------------------------------------------ what does not fit

    def note(self, claims: Claims) -> bool:
        """What a claim has found; whether other tasks may fit now that did not, or were not looked at."""
        reservation = self._reservation
        if reservation is None or (
            claims.reserved is None and reservation.reserved is None and reservation.let_go is None
        ):
            return False
        return reservation.note(claims)

    def reserve_nothing(self) -> None:
        """Keep room for no task any more."""
        if self._reservation is not None:
            self._reservation.forget()

    @property
    def is_letting_go(self) -> bool:
        """Whether the next request says that it keeps room no longer; none is begun to be kept by that one."""
        return self._reservation is not None and self._reservation.is_letting_go

    @property
    def held(self) -> dict[str, int]:
        """How much of what is free must be left to the task that room is kept for."""
        return {} if self._reservation is None else self._reservation.held(self._ledger.unpromised)

    @property
    def yielding(self) -> dict[str, int]:
        """What running tasks would yield to urgent ones that do not rest: slots, child processes, resources."""
        if not any(kind_request.is_urgent for kind_request in self._kind_requests.values()):
            return {}
        return self._offered()

    @property
    def backed_off(self) -> dict[str, float]:
        """For how many seconds nobody is asked to yield to these urgent kinds, because somebody did not."""
        if self._preemption is None:
            return {}
        left = {
            kind: self._preemption.backoff_for(kind)
            for kind, kind_request in self._kind_requests.items()
            if kind_request.is_urgent
        }
        return {kind: seconds for kind, seconds in left.items() if seconds}

    @property
    def brief(self) -> list[str]:
        """Kinds that need leave nothing to the task that room is kept for."""
        if self._reservation is None or self._reservation.reserved is None:
            return []
        return self._reservation.brief(self._kind_requests.values(), self._ledger.unpromised)

    @property
    def reserved(self) -> ReservedTask | None:
        """The task that room is kept for."""
        return None if self._reservation is None else self._reservation.reserved

    @property
    def patience_seconds(self) -> float:
        """For how long a task that does not fit lets others pass."""
        return PATIENCE_SECONDS if self._reservation is None else self._reservation.patience_seconds

    @property
    def patience(self) -> float | None:
        """The same; None: for ever, since no room is kept."""
        return None if self._reservation is None else self._reservation.patience_seconds

    @property
    def returns(self) -> int:
        """Grows whenever something of a resource was given back."""
        return self._ledger.returns


def _kind_request(task_type: AnyTask, rank: int) -> KindRequest:
    """What a task of this kind needs besides a slot of the node."""
    return KindRequest(
        kind=task_type.kind,
        count=0,
        limits=task_type.limits,
        provider=task_type.provider.name if task_type.provider is not None else None,
        is_rated=task_type.policy.rate is not None,
        is_command=task_type.is_command,
        requirements=task_type.weight,
        rank=rank,
        is_urgent=task_type.policy.urgent,
    )


def kind_status(kind_request: KindRequest, task_type: AnyTask) -> KindStatus:
    """What a node says of one of its kinds."""
    return KindStatus(
        max_running=task_type.policy.max_running,
        is_process=kind_request.is_process,
        requirements=task_type.requirements_text,
        rank=kind_request.rank,
        is_urgent=kind_request.is_urgent,
        is_asking=task_type.acceptor is not None,
        is_command=kind_request.is_command,
        limits=kind_request.limits,
        provider=kind_request.provider,
    )
