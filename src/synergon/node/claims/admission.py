"""Builds claim requests: how many tasks of each kind may start on this node now, and the capacity that they may use."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from synergon.model.claims import CandidateQuery, ClaimRequest, Claims, KindRequest, ReservedTask
from synergon.model.node_status import FreeSlots, KindStatus, free_slots
from synergon.model.requirements import KIND_DEFAULT, NO_REQUIREMENTS, SLOT, is_suitable
from synergon.node.capacity.bounds import bounds_by_kind
from synergon.node.capacity.preemption import Preemption
from synergon.node.capacity.reservation import PATIENCE_SECONDS, Reservation
from synergon.node.claims.fairness import Fairness
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.short_kinds import ShortKinds
from synergon.options.pipelines import ranks
from synergon.stores.rules.node_capacity import requirements_of
from synergon.task import AnyTask


class Admission:
    """Makes a claim request from the free capacity. It requests only tasks that can start at once. For an old task that
    does not fit, it reserves capacity (`Reservation`)."""

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
        short_kinds: ShortKinds | None = None,
    ) -> None:
        self._kinds = kinds
        self._ledger = ledger
        self._queues = queues
        self.labels = labels
        self.node_id = ""
        self.is_open = True
        """Whether the node may claim. The scheduler sets it."""
        self._reservation = reservation
        self._preemption = preemption
        self._most_at_once = most_at_once or ledger.concurrency
        """The maximum number of tasks in one claim request."""
        self._short_kinds = short_kinds if short_kinds is not None and short_kinds.is_needed else None
        order = ranks(kinds)
        bounds = bounds_by_kind(kinds, ledger.totals)
        self._kind_requests = {
            kind: _kind_request(task_type, order[kind], bounds.get(kind, ())) for kind, task_type in kinds.items()
        }
        self._kind_statuses = {kind: kind_status(self._kind_requests[kind], kinds[kind]) for kind in kinds}
        self._fairness = Fairness(self._kind_statuses, ledger)
        self._slot_only = frozenset(
            kind
            for kind, kind_request in self._kind_requests.items()
            if kind_request.needs_only_slot and kind_request.requirements == NO_REQUIREMENTS
        )
        """Kinds whose tasks need nothing but a slot."""
        self._unbounded = frozenset(kind for kind in self._slot_only if kinds[kind].policy.max_running is None)
        """Kinds of `_slot_only` that may use every slot of the node."""
        self._has_preemption = preemption is not None and preemption.is_needed

    def serves(self, kind: str, queue: str | None) -> bool:
        """Whether this node runs tasks of this kind and queue. If `queue` is None (unknown), only a node that serves
        all queues does."""
        return kind in self._kinds and (self._queues is None or queue in self._queues)

    def kinds(self) -> Iterator[tuple[KindRequest, AnyTask]]:
        """The kind request of each kind, with a count of 0."""
        return ((self._current_request(kind), task_type) for kind, task_type in self._kinds.items())

    def request(self, node_id: str, wanted: Collection[str]) -> ClaimRequest | None:
        """The claim request for the wanted kinds. None if there is no capacity for any of them, or while a preempted
        task is being handed back."""
        if self._has_preemption and self._preemption is not None and self._preemption.is_hand_back_pending:
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
            patience=None if reservation is None else reservation.patience,
            reserve_microseconds=0 if reservation is None else reservation.reserve_microseconds,
            shares=ledger.shares,
        )
        if reservation is not None and (reservation.reserved is not None or reservation.dropped_task is not None):
            request = reservation.extend_request(request, self)
        return request

    def _with_capacity(self, wanted: Collection[str]) -> list[KindRequest]:
        """The kind requests of the wanted kinds that have capacity. One claim request contains all of them, so that
        claim order holds across kinds. The claim takes no more than the capacity that the kinds share."""
        kind_requests = [kind_request for kind in wanted if (kind_request := self.counted(kind)).count > 0]
        return (
            [kind_request for kind_request in self._fairness.share(kind_requests) if kind_request.count > 0]
            if self._fairness.is_needed
            else kind_requests
        )

    def _yielding(self, kind_requests: Collection[KindRequest]) -> dict[str, int]:
        """The capacity that running tasks would yield to the urgent kinds of the request. Empty if the request has no
        urgent kind, or all are in a back-off."""
        return self._offered() if any(kind_request.is_yielded_to for kind_request in kind_requests) else {}

    def _offered(self) -> dict[str, int]:
        """The slots and resources that running tasks would yield. Slots that are promised to other urgent tasks are
        subtracted."""
        if self._preemption is None:
            return {}
        offered = self._preemption.offered
        slots = max(offered[SLOT] + min(self._ledger.free, 0), 0)
        return {SLOT: slots} | {name: offered[name] for name in self._ledger.totals}

    def candidate_query(self, kind: str, after: tuple[int, int, int] | None, limit: int) -> CandidateQuery:
        """The query for candidates of a kind with `can_accept`."""
        return CandidateQuery(
            kind_request=self._kind_requests[kind],
            queues=self._queues,
            labels=self.labels,
            totals=self._ledger.totals,
            node_id=self.node_id,
            after=after,
            limit=limit,
        )

    def counted(self, kind: str) -> KindRequest:
        """The kind request with the number of tasks that can start now, or are to be claimed ahead."""
        count, ahead = max(self.free_count(kind), 0), 0
        if self._short_kinds is not None:
            claimed_ahead = self._short_kinds.ahead(kind)
            if claimed_ahead is None:
                return self._current_request(kind)
            ahead = claimed_ahead
        return msgspec.structs.replace(self._current_request(kind), count=count, ahead=ahead)

    def _current_request(self, kind: str) -> KindRequest:
        kind_request = self._kind_requests[kind]
        if kind_request.is_isolable and self._kinds[kind].uses_transaction:
            kind_request = self._kind_requests[kind] = msgspec.structs.replace(kind_request, is_isolable=False)
        if kind_request.is_urgent and self._preemption is not None and self._preemption.backoff_for(kind):
            return msgspec.structs.replace(kind_request, is_backed_off=True)
        return kind_request

    def has_capacity(self, kind: str) -> bool:
        """Whether this node runs the kind, and a task of it can start now without preemption."""
        return kind in self._kinds and self.expected(kind) > 0

    def has_any_capacity(self, kind: str | None) -> bool:
        """Whether a task of this kind can start now. If `kind` is None, whether any slot is free."""
        return self._ledger.free > 0 if kind is None else self.has_capacity(kind)

    def free_count(self, kind: str) -> int:
        """How many tasks of this kind can start now, by slots and by the kind's `max_running`. For an urgent kind,
        slots that others would yield count."""
        return self._ledger.free if kind in self._unbounded else self.free_slots(kind).free

    def free_slots(self, kind: str) -> FreeSlots:
        """The free slots for a kind, by the slots of the node and by `max_running`."""
        status, ledger = self._kind_statuses[kind], self._ledger
        preemption = self._preemption if status.is_urgent else None
        return free_slots(
            status,
            slots=ledger.free,
            commands=ledger.commands_free,
            yielded=0 if preemption is None else preemption.yielding(kind)[SLOT],
            running=ledger.count(kind),
        )

    def expected(self, kind: str, text: str = KIND_DEFAULT, queue: str | None = None) -> int:
        """How many tasks of this kind, queue and requirements can start now without preemption. Preemption does not
        count, because free capacity on another node is preferred to it."""
        free = self.free_count(kind)
        if kind in self._slot_only and text == KIND_DEFAULT:
            return free
        requirements = requirements_of(self._kind_requests[kind], text, queue)
        if self._kinds[kind].policy.urgent:
            free = min(free, self._ledger.free)
        if requirements == NO_REQUIREMENTS:
            return free
        if not is_suitable(requirements, self.labels, self._ledger.totals):
            return 0
        available = self._ledger.unpromised
        return min([free, *(available[name] // amount for name, amount in requirements.cost.items())])

    # ------------------------------------------------------------ reservation and preemption

    def note(self, claims: Claims) -> bool:
        """Store the reservation that a claim has returned. Returns whether it has changed, so that another claim is
        worthwhile."""
        reservation = self._reservation
        if reservation is None or (
            claims.reserved is None and reservation.reserved is None and reservation.dropped_task is None
        ):
            return False
        return reservation.note(claims)

    def reserve_nothing(self) -> None:
        """Drop the reservation."""
        if self._reservation is not None:
            self._reservation.forget()

    @property
    def drops_reservation(self) -> bool:
        """Whether the next request drops the reservation. That request cannot make a new one."""
        return self._reservation is not None and self._reservation.drops_reservation

    @property
    def held(self) -> dict[str, int]:
        """The part of the free capacity that is held for the reserved task."""
        return {} if self._reservation is None else self._reservation.held(self._ledger.unpromised)

    @property
    def yielding(self) -> dict[str, int]:
        """The capacity that running tasks would yield to urgent kinds without a back-off: slots, child processes,
        resources. Empty if the node has no urgent kind."""
        if not any(kind_request.is_urgent for kind_request in self._kind_requests.values()):
            return {}
        return self._offered()

    @property
    def backed_off(self) -> dict[str, float]:
        """For each urgent kind in a back-off, how many more seconds this node preempts nothing for it."""
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
        """Kinds whose tasks may use the capacity that is held for the reserved task."""
        if self._reservation is None or self._reservation.reserved is None:
            return []
        return self._reservation.brief(self._kind_requests.values(), self._ledger.unpromised)

    @property
    def reserved(self) -> ReservedTask | None:
        """The task for which capacity is reserved. None if there is none."""
        return None if self._reservation is None else self._reservation.reserved

    @property
    def patience_seconds(self) -> float:
        """How many seconds a task must have waited before capacity is reserved for it."""
        return PATIENCE_SECONDS if self._reservation is None else self._reservation.patience / 1_000_000

    @property
    def patience(self) -> float | None:
        """How many seconds a task must have waited before capacity is reserved for it. None if nothing may be
        reserved."""
        return None if self._reservation is None else self._reservation.patience / 1_000_000

    @property
    def release_count(self) -> int:
        """A number that grows each time an attempt frees a resource."""
        return self._ledger.release_count


def _kind_request(task_type: AnyTask, rank: int, bounds: tuple[str, ...]) -> KindRequest:
    """The kind request of a kind, with all that its tasks need besides a slot."""
    return KindRequest(
        kind=task_type.kind,
        count=0,
        limits=task_type.limits,
        provider=task_type.provider.name if task_type.provider is not None else None,
        is_rated=task_type.policy.rate is not None,
        is_command=task_type.is_command,
        requirements=task_type.weight,
        is_threaded=task_type.is_threaded,
        rank=rank,
        is_urgent=task_type.policy.urgent,
        is_isolable=task_type.is_isolable,
        is_fair=task_type.policy.fair_by is not None,
        bounds=bounds,
        batch_size=0 if task_type.policy.batch is None else task_type.policy.batch.size,
    )


def kind_status(kind_request: KindRequest, task_type: AnyTask) -> KindStatus:
    """The status of one kind, as the node publishes it."""
    return KindStatus(
        max_running=task_type.policy.max_running,
        is_process=kind_request.is_process,
        is_threaded=kind_request.is_threaded,
        requirements=task_type.requirements_text,
        rank=kind_request.rank,
        is_urgent=kind_request.is_urgent,
        has_can_accept=task_type.acceptor is not None,
        is_command=kind_request.is_command,
        limits=kind_request.limits,
        provider=kind_request.provider,
        is_isolable=task_type.is_isolable,
    )
