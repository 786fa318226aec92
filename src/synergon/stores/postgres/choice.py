"""Who is taken: what the node can carry and what all nodes share must both have a place for a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.stores.leaving import Elsewhere, Leaving
from synergon.stores.node_capacity import Fit, NodeCapacity, claim_order, may_reserve, requirements_of
from synergon.stores.shared_capacity import Grant, PermitRequest, SharedCapacity

LaneName = tuple[str, str]
"""Kind and requirements."""


class Contender(NamedTuple):
    """A ready task that might be taken."""

    candidate: PermitRequest
    queue: str
    requirements: str
    may_be_kept: bool
    """It has been due for long enough, and no other node keeps room for it."""


class Taken(NamedTuple):
    """A task that is chosen, and what it will hold."""

    contender: Contender
    seat: Grant


class Choice(NamedTuple):
    """What is to be done."""

    taken: list[Taken]
    kept: Contender | None
    """Room is to be kept for this one."""


def contender(row: Any) -> Contender:
    """What a look has shown."""
    return Contender(candidate(row), row["queue"], row["requirements"], row["may_be_kept"])


def candidate(row: Any) -> PermitRequest:
    """The same, as far as places go. A retry avoids the server of the attempt before."""
    avoid = row["server"] if row["attempts"] > 0 else None
    return PermitRequest(row["id"], row["priority"], row["kind"], row["target"], avoid)


def rest_of(request: ClaimRequest, rows: Sequence[Any]) -> ClaimRequest:
    """What there is still room for when these rows are taken."""
    if not rows:
        return request
    rooms = {room.kind: room for room in request.kinds}
    by_kind = Counter(row["kind"] for row in rows)
    free = dict(request.free)
    costs = [requirements_of(rooms[row["kind"]], row["requirements"]).cost for row in rows]
    for cost in costs:
        for name, amount in cost.items():
            free[name] = free.get(name, 0) - amount
    return replace(
        request,
        kinds=tuple(replace(room, count=room.count - by_kind[room.kind]) for room in request.kinds),
        limit=request.limit - sum(by_kind[room.kind] for room in request.kinds if not room.is_command),
        free=free,
        shares=(*request.shares, *filter(None, costs)),
        held={} if any(row["id"] == request.reserved_task for row in rows) else request.held,
    )


def most_by_weight(request: ClaimRequest, scales: NodeCapacity, room: KindRequest, text: str) -> int:
    """How many of a lane have to be looked at, as far as the node itself goes."""
    most = min(room.count, scales.slots(room) + may_reserve(request))
    requirements = requirements_of(room, text)
    if most <= 0 or scales.fit(room, requirements) is Fit.NEVER:
        return 0
    share = scales.most(room, requirements)
    if not share:  # if nobody may be kept room for, it is not even looked at
        scales.unfit.add(room.kind)
    return min(most, share + may_reserve(request))


class Choosing:
    """One choice among what is there."""

    def __init__(self, request: ClaimRequest, allotment: SharedCapacity) -> None:
        self.request = request
        self.allotment = allotment
        self._scales = NodeCapacity(request)
        self._rooms = {room.kind: room for room in request.kinds}
        self.leaving = Leaving(request, allotment)
        """What is left to tasks of other nodes, when it is chosen."""

    @property
    def unfit(self) -> set[str]:
        """Kinds of which something fits later and not now."""
        return self._scales.unfit

    def most(self, room: KindRequest, text: str) -> int:
        """So many of a lane have to be looked at; of one that does not fit now, the first."""
        most = self.allotment.most(room)
        return min(most, most_by_weight(self.request, self._scales, room, text)) if most > 0 else 0

    def fits(self, room: KindRequest, text: str) -> bool:
        """Whether one of the lane could be taken now."""
        return self._scales.fit(room, requirements_of(room, text)) is Fit.NOW

    def hold(self, contender: Contender) -> None:
        """Others leave to the task that room is kept for what it needs of that which all nodes share."""
        if self.request.reserve_microseconds > 0:
            self.allotment.hold(self._rooms[contender.candidate.kind], contender.candidate)

    def choose(self, contenders: Iterable[Contender], elsewhere: Collection[Elsewhere] = ()) -> Choice:
        """Take in order what has a place in everything; or keep room for the first that has one later. Tasks that are
        elsewhere are let pass in their turn."""
        leaving = self.leaving = Leaving(self.request, self.allotment, elsewhere)
        left = Counter({room.kind: room.count for room in self.request.kinds})
        taken: list[Taken] = []
        passed: set[tuple[str, str, str]] = set()
        for contender in sorted(contenders, key=self._place):
            candidate = contender.candidate
            room = self._rooms[candidate.kind]
            has_slot = self._scales.slots(room) > 0
            # One that does not fit may have room kept for it although all slots are gone: they come back one by one,
            # and what it waits for comes back only if it is kept.
            if left[room.kind] <= 0 or not (has_slot or self._scales.may_keep):
                continue
            lane = (candidate.kind, contender.queue, contender.requirements)
            if lane in passed and candidate.id != self.request.reserved_task:
                continue
            requirements = requirements_of(room, contender.requirements)
            match self._scales.fit(room, requirements, candidate.id):
                case Fit.NOW if has_slot:
                    if leaving.is_any:
                        leaving.let_pass(self._place(contender))
                    seat = self.allotment.take(room, candidate)
                    if seat is None:
                        leaving.refused(room, candidate)
                    else:
                        leaving.taken(candidate.id)
                        self._scales.take(room, requirements, candidate.id)
                        left[room.kind] -= 1
                        taken.append(Taken(contender, seat))
                case Fit.LATER | Fit.IN_TURN as fit:
                    passed.add(lane)  # of what does not fit nothing but the first is looked at
                    if fit is Fit.LATER and self._is_to_be_kept(room, contender):
                        return Choice(taken, contender)
        return Choice(taken, None)

    def _is_to_be_kept(self, room: KindRequest, contender: Contender) -> bool:
        candidate, requirements = contender.candidate, requirements_of(room, contender.requirements)
        may_be_kept = self._scales.may_keep and contender.may_be_kept
        if not may_be_kept or not self.allotment.has_place(room, candidate):
            return False
        return self._scales.is_worth_keeping(room, requirements, candidate.id)

    def _place(self, contender: Contender) -> tuple[Any, ...]:
        candidate = contender.candidate
        return claim_order(self._rooms[candidate.kind], candidate.priority, candidate.id, self.request.reserved_task)
