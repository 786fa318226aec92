"""The reservation of a node: capacity for one old task that does not fit yet, so that small tasks cannot starve it.

The store chooses the task and stores the reservation with an expiry (`Claims.reserved`). The node computes how much of
its free capacity must be held for the task: from the deadlines of running attempts it knows when enough of them will
have ended. The rest of the free capacity may be used by all, and the held part by tasks that end before that moment.
"""

from __future__ import annotations

import math
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from synergon.model.claims import ClaimRequest, Claims, KindRequest, ReservedTask
from synergon.node.attempts.attempt import Attempt, Stop
from synergon.node.attempts.deadlines import Timeouts
from synergon.node.signals import Signals
from synergon.options.durations import microseconds
from synergon.task import AnyTask

if TYPE_CHECKING:
    from synergon.node.capacity.acceptance import Acceptance
    from synergon.node.claims.admission import Admission

PATIENCE_SECONDS: Final = 3.0
"""How many seconds a task that does not fit must have waited before capacity is reserved for it."""

END_SECONDS: Final = 1.0
"""How many seconds a task function may take to end after its deadline."""


class Reservation:
    """The task for which this node has reserved capacity, if any, and how that restricts other tasks."""

    def __init__(
        self,
        kinds: Mapping[str, AnyTask],
        running: Mapping[int, Attempt],
        timeouts: Timeouts,
        loop: AbstractEventLoop,
        *,
        reserve_seconds: float,
        signals: Signals,
    ) -> None:
        self._kinds = kinds
        self._running = running
        self._timeouts = timeouts
        self._loop = loop
        self.reserve_microseconds: Final = microseconds(reserve_seconds)
        self._signals = signals
        self.acceptance: Acceptance | None = None
        """The acceptance of the node, which knows whether `can_accept` has rejected the reserved task. The node sets
        it."""
        self.patience: int = microseconds(PATIENCE_SECONDS)
        self.reserved: ReservedTask | None = None
        self.dropped_task: int | None = None
        """The task whose reservation this node has dropped, while the store does not know that yet. None if there is
        none."""

    def extend_request(self, request: ClaimRequest, admission: Admission) -> ClaimRequest:
        """The request, extended by the reservation: it holds capacity for the reserved task or, if `can_accept` has
        rejected that task, drops the reservation."""
        if self.drops_reservation:
            self.forget()
        reserved = self.reserved
        if reserved is None:
            reserve_microseconds = self.reserve_microseconds if self.dropped_task is None else 0
            return msgspec.structs.replace(
                request, reserved_task=self.dropped_task, reserve_microseconds=reserve_microseconds
            )
        moment, held = self._expected_start(reserved, request.free)
        kind_requests = [
            msgspec.structs.replace(kind_request, is_brief=self._is_brief(kind_request, moment))
            for kind_request in request.kinds
        ]
        of_kind = admission.free_slots(reserved.kind).of_kind
        kind_requests = [
            leave_one_for_reserved(kind_request, of_kind, reserved.id)
            if kind_request.kind == reserved.kind
            else kind_request
            for kind_request in kind_requests
        ]
        if all(
            kind_request.kind != reserved.kind for kind_request in kind_requests
        ):  # the store reads the reserved task, and takes none
            kind_requests.append(msgspec.structs.replace(admission.counted(reserved.kind), count=0))
        return msgspec.structs.replace(
            request,
            kinds=tuple(kind_requests),
            reserved_task=reserved.id,
            held=held,
        )

    @property
    def drops_reservation(self) -> bool:
        """Whether the next request drops the reservation."""
        if self.reserved is None:
            return self.dropped_task is not None
        return self.acceptance is not None and self.acceptance.is_rejected(self.reserved.kind, self.reserved.id)

    def note(self, claims: Claims) -> bool:
        """Store the reservation that a claim has returned. Returns whether it has changed, so that another claim is
        worthwhile."""
        before, self.reserved = self.reserved, claims.reserved
        had_let_go, self.dropped_task = self.dropped_task is not None, None
        if self.reserved is not None and (before is None or before.id != self.reserved.id):
            self._signals.reserved(self.reserved.id)
        return had_let_go or before != self.reserved

    def forget(self) -> None:
        """Drop the reservation. The next claim request drops it in the store."""
        if self.reserved is not None:
            self.dropped_task = self.reserved.id
        self.reserved = None

    def held(self, free: Mapping[str, int]) -> dict[str, int]:
        """The part of the free capacity that is held for the reserved task."""
        return {} if self.reserved is None else self._expected_start(self.reserved, free)[1]

    def brief(self, kind_requests: Iterable[KindRequest], free: Mapping[str, int]) -> list[str]:
        """The kinds whose tasks end before the reserved task can start."""
        if self.reserved is None:
            return []
        moment, _ = self._expected_start(self.reserved, free)
        return [kind_request.kind for kind_request in kind_requests if self._is_brief(kind_request, moment)]

    # ------------------------------------------------------------ the start of the reserved task

    def _expected_start(self, reserved: ReservedTask, free: Mapping[str, int]) -> tuple[float, dict[str, int]]:
        """The latest moment at which the reserved task can start, and the capacity that must be held for it until
        then."""
        cost = reserved.requirements.cost
        released: Counter[str] = Counter()
        moment = self._loop.time()
        for ends, attempt in self._ends():
            is_enough = all(free.get(name, 0) + released[name] >= amount for name, amount in cost.items())
            if is_enough and ends > moment:
                break
            moment = ends
            released.update({name: attempt.cost[name] for name in cost.keys() & attempt.cost.keys()})
        if math.isinf(moment):  # the moment is unknown, so all free capacity is held
            return moment, dict(cost)
        return moment, {name: max(amount - released[name], 0) for name, amount in cost.items()}

    def _ends(self) -> Iterable[tuple[float, Attempt]]:
        users = [attempt for attempt in list(self._running.values()) if attempt.cost]
        return sorted(((self._ends_by(attempt), attempt) for attempt in users), key=lambda pair: pair[0])

    def _ends_by(self, attempt: Attempt) -> float:
        if attempt.deadline is not None:
            return attempt.deadline + END_SECONDS
        if attempt.timeout is None or attempt.stop is Stop.TIMEOUT:
            return math.inf  # an attempt without a deadline
        return self._loop.time() + attempt.timeout + END_SECONDS  # the task function has not started yet

    def _is_brief(self, kind_request: KindRequest, moment: float) -> bool:
        timeout = self._timeouts.of_kind(self._kinds[kind_request.kind])
        if timeout is None or math.isinf(moment):
            return False
        return self._loop.time() + timeout + END_SECONDS <= moment


def leave_one_for_reserved(kind_request: KindRequest, of_kind: int | None, reserved_task: int) -> KindRequest:
    """The kind request for the reserved task's kind. If it would use up `max_running` of the kind, it is reduced by one
    task, so that the reserved task can start."""
    if of_kind is None or kind_request.count < of_kind:
        return kind_request
    if of_kind > 1:
        return msgspec.structs.replace(kind_request, count=of_kind - 1)
    return msgspec.structs.replace(kind_request, only=(reserved_task,))
