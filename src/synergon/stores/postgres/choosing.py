"""Who is taken: what the node can carry and what all nodes share must both have a place for a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from synergon.records import ClaimRequest, Room
from synergon.stores.allotting import Allotment, Candidate, Seat
from synergon.stores.leaving import Elsewhere, Leaving
from synergon.stores.weighing import Fit, Scales, demand_of, may_keep, place

LaneName = tuple[str, str]
"""Kind and demand."""


class Contender(NamedTuple):
    """A ready task that might be taken."""

    candidate: Candidate
    queue: str
    demand: str
    may_be_kept: bool
    """It has been due for long enough, and no other node keeps room for it."""


class Taken(NamedTuple):
    """A task that is chosen, and what it will hold."""

    contender: Contender
    seat: Seat


class Choice(NamedTuple):
    """What is to be done."""

    taken: list[Taken]
    kept: Contender | None
    """Room is to be kept for this one."""


def contender(row: Any) -> Contender:
    """What a look has shown."""
    return Contender(candidate(row), row["queue"], row["demand"], row["may_be_kept"])


def candidate(row: Any) -> Candidate:
    """The same, as far as places go. A retry avoids the server of the attempt before."""
    avoid = row["server"] if row["attempts"] > 0 else None
    return Candidate(row["id"], row["priority"], row["kind"], row["target"], avoid)


def rest_of(request: ClaimRequest, rows: Sequence[Any]) -> ClaimRequest:
    """What there is still room for when these rows are taken."""
    if not rows:
        return request
    rooms = {room.kind: room for room in request.rooms}
    by_kind = Counter(row["kind"] for row in rows)
    free = dict(request.free)
    costs = [demand_of(rooms[row["kind"]], row["demand"]).cost for row in rows]
    for cost in costs:
        for name, amount in cost.items():
            free[name] = free.get(name, 0) - amount
    return replace(
        request,
        rooms=tuple(replace(room, count=room.count - by_kind[room.kind]) for room in request.rooms),
        limit=request.limit - sum(by_kind[room.kind] for room in request.rooms if not room.is_command),
        free=free,
        shares=(*request.shares, *filter(None, costs)),
        held={} if any(row["id"] == request.kept_for for row in rows) else request.held,
    )


def most_by_weight(request: ClaimRequest, scales: Scales, room: Room, text: str) -> int:
    """How many of a lane have to be looked at, as far as the node itself goes."""
    most = min(room.count, scales.slots(room) + may_keep(request))
    demand = demand_of(room, text)
    if most <= 0 or scales.fit(room, demand) is Fit.NEVER:
        return 0
    share = scales.most(room, demand)
    if not share:  # if nobody may be kept room for, it is not even looked at
        scales.unfit.add(room.kind)
    return min(most, share + may_keep(request))


class Choosing:
    """One choice among what is there."""

    def __init__(self, request: ClaimRequest, allotment: Allotment) -> None:
        self.request = request
        self.allotment = allotment
        self._scales = Scales(request)
        self._rooms = {room.kind: room for room in request.rooms}
        self.leaving = Leaving(request, allotment)
        """What is left to tasks of other nodes, when it is chosen."""

    @property
    def unfit(self) -> set[str]:
        """Kinds of which something fits later and not now."""
        return self._scales.unfit

    def most(self, room: Room, text: str) -> int:
        """So many of a lane have to be looked at; of one that does not fit now, the first."""
        most = self.allotment.most(room)
        return min(most, most_by_weight(self.request, self._scales, room, text)) if most > 0 else 0

    def fits(self, room: Room, text: str) -> bool:
        """Whether one of the lane could be taken now."""
        return self._scales.fit(room, demand_of(room, text)) is Fit.NOW

    def hold(self, contender: Contender) -> None:
        """Others leave to the task that room is kept for what it needs of that which all nodes share."""
        if self.request.keep_for > 0:
            self.allotment.hold(self._rooms[contender.candidate.kind], contender.candidate)

    def choose(self, contenders: Iterable[Contender], elsewhere: Collection[Elsewhere] = ()) -> Choice:
        """Take in order what has a place in everything; or keep room for the first that has one later. Tasks that are
        elsewhere are let pass in their turn."""
        leaving = self.leaving = Leaving(self.request, self.allotment, elsewhere)
        left = Counter({room.kind: room.count for room in self.request.rooms})
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
            lane = (candidate.kind, contender.queue, contender.demand)
            if lane in passed and candidate.id != self.request.kept_for:
                continue
            demand = demand_of(room, contender.demand)
            match self._scales.fit(room, demand, candidate.id):
                case Fit.NOW if has_slot:
                    if leaving.is_any:
                        leaving.let_pass(self._place(contender))
                    seat = self.allotment.take(room, candidate)
                    if seat is None:
                        leaving.refused(room, candidate)
                    else:
                        leaving.taken(candidate.id)
                        self._scales.take(room, demand, candidate.id)
                        left[room.kind] -= 1
                        taken.append(Taken(contender, seat))
                case Fit.LATER | Fit.IN_TURN as fit:
                    passed.add(lane)  # of what does not fit nothing but the first is looked at
                    if fit is Fit.LATER and self._is_to_be_kept(room, contender):
                        return Choice(taken, contender)
        return Choice(taken, None)

    def _is_to_be_kept(self, room: Room, contender: Contender) -> bool:
        candidate, demand = contender.candidate, demand_of(room, contender.demand)
        may_be_kept = self._scales.may_keep and contender.may_be_kept
        if not may_be_kept or not self.allotment.has_place(room, candidate):
            return False
        return self._scales.is_worth_keeping(room, demand, candidate.id)

    def _place(self, contender: Contender) -> tuple[Any, ...]:
        candidate = contender.candidate
        return place(self._rooms[candidate.kind], candidate.priority, candidate.id, self.request.kept_for)
