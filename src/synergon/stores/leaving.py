"""Places that a claim leaves to others: a task that is better, and that only another node could take now, has its place
counted as taken before worse ones are served.

It is looked only at what the request does not cover itself: kinds that the node does not run or has no room for, queues
that it does not serve, demands that it cannot carry. Where it covers all that share a place, nothing is looked at.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from synergon.model.claims import CandidateQuery, ClaimRequest, KindRequest
from synergon.model.task_records import TaskRecord
from synergon.stores.node_capacity import NodeCapacity, claim_order, requirements_of
from synergon.stores.shared_capacity import Grant, PermitRequest, SharedCapacity

MOST_LEFT: Final = 8
"""To so many tasks of a kind places are left at a time."""


class Coverage:
    """What a request could take itself, as far as its node goes."""

    def __init__(self, request: ClaimRequest) -> None:
        self._request = request
        self._rooms = {room.kind: room for room in request.kinds if room.count > 0}
        self._scales = NodeCapacity(request)

    def has(self, kind: str, queue: str, text: str) -> bool:
        """Whether as many tasks of a lane could be taken as there are slots: whatever is there is for this node."""
        room, queues = self._rooms.get(kind), self._request.queues
        return room is not None and (queues is None or queue in queues) and self.fits(room, text)

    def fits(self, room: KindRequest, text: str) -> bool:
        """The same, in a queue that the node serves."""
        slots = self._scales.slots(room)
        return room.count >= slots and self._scales.most(room, requirements_of(room, text)) >= slots

    def is_beyond(self, look: CandidateQuery) -> bool:
        """Whether it shows what nobody here has asked for."""
        return look.room.kind not in self._rooms or not are_served(look.queues, self._request.queues)


def are_served(theirs: frozenset[str] | None, ours: frozenset[str] | None) -> bool:
    """Whether all queues of others are served here, too."""
    return ours is None or (theirs is not None and theirs <= ours)


def strangers(request: ClaimRequest, rooms: Collection[KindRequest]) -> list[CandidateQuery]:
    """What others could take of kinds or queues that were not asked for, and shares limits or servers with these, or a
    limit that covers servers of both, should there be one."""
    if not request.rivals:
        return []
    coverage = Coverage(request)
    return [look for look in request.rivals if coverage.is_beyond(look) and _shares(look.room, rooms)]


def sought(
    request: ClaimRequest, lanes: Collection[tuple[KindRequest, str]], *, is_covered: bool
) -> list[CandidateQuery]:
    """What has to be looked at before places are given to tasks of these lanes, by their rooms and demands. Only if a
    limit covers servers of theirs, those of another provider may matter to them."""
    if not request.rivals:
        return []
    coverage, rooms = Coverage(request), [room for room, _ in lanes]
    # Whoever is alone with others of its lane is in order with them: there is nobody to be held back.
    unfit = {room.kind for room, text in lanes if not coverage.fits(room, text)} if len(lanes) > 1 else set()
    looks = [look for look in request.rivals if look.room.kind in unfit or coverage.is_beyond(look)]
    return [look for look in looks if (_shares if is_covered else shares_by_name)(look.room, rooms)]


def shares_by_name(room: KindRequest, rooms: Collection[KindRequest]) -> bool:
    """Whether it takes places in a limit or on servers that one of these takes, too."""
    return any(
        not set(room.limits).isdisjoint(other.limits) or (room.provider is not None and room.provider == other.provider)
        for other in rooms
    )


def _shares(room: KindRequest, rooms: Collection[KindRequest]) -> bool:
    """A limit may cover servers of several providers."""
    return shares_by_name(room, rooms) or (
        room.provider is not None and any(other.provider is not None for other in rooms)
    )


class Elsewhere(NamedTuple):
    """A ready task that another node could take."""

    room: KindRequest
    candidate: PermitRequest
    queue: str
    requirements: str

    @property
    def place(self) -> tuple[bool, bool, int, int, int]:
        """Where it stands in the order of the claim."""
        return claim_order(self.room, self.candidate.priority, self.candidate.id)


class Leaving:
    """One claim's dealings with the tasks of others: whoever serves tasks in order lets them pass in their turn."""

    def __init__(self, request: ClaimRequest, allotment: SharedCapacity, found: Collection[Elsewhere] = ()) -> None:
        beyond = _not_covered(request, found)
        self.unserved = frozenset(beyond.keys() & request.past)
        """Those that have had their time, and nobody came: then this claim waits for nobody at all."""
        waiting = [] if self.unserved else list(beyond.values())
        self._allotment = allotment
        self.is_any = bool(waiting)
        """Whether anybody else may have to be let pass; if not, nothing need be told here."""
        self._waiting = sorted(waiting, key=lambda one: one.place, reverse=True)
        self._taken: set[int] = set()
        self._seated: list[tuple[Elsewhere, Grant]] = []
        self.left: tuple[tuple[int, str], ...] = ()
        """To whom places were left that somebody else could have had."""

    def let_pass(self, here: tuple[bool, bool, int, int, int]) -> None:
        """The turn has come to whoever stands here: all before it have theirs."""
        while self._waiting and self._waiting[-1].place < here:
            self._seat(self._waiting.pop())

    def taken(self, task_id: int) -> None:
        """This node has it."""
        self._taken.add(task_id)

    def refused(self, room: KindRequest, candidate: PermitRequest) -> None:
        """There was no place for this one; perhaps because it is left to others."""
        if not self._seated or self.left:
            return
        seated, self._seated = self._seated, []
        for _, seat in seated:
            self._allotment.give_back(seat)
        if self._allotment.has_place(room, candidate):
            self.left = tuple((one.candidate.id, one.candidate.kind) for one, _ in seated)
        for one, _ in seated:
            self._seat(one)

    def _seat(self, one: Elsewhere) -> None:
        if one.candidate.id in self._taken:
            return
        seat = self._allotment.take(one.room, one.candidate)
        if seat is not None:
            self._seated.append((one, seat))


def _not_covered(request: ClaimRequest, found: Collection[Elsewhere]) -> dict[int, Elsewhere]:
    if not found:
        return {}
    coverage = Coverage(request)
    return {one.candidate.id: one for one in found if not coverage.has(one.candidate.kind, one.queue, one.requirements)}


def seen(look: CandidateQuery, task: TaskRecord) -> Elsewhere:
    """What a look has shown. A retry avoids the server of the attempt before."""
    avoid = task.server if task.attempts > 0 else None
    candidate = PermitRequest(task.id, task.priority, task.kind, task.target, avoid)
    return Elsewhere(look.room, candidate, task.queue, task.requirements)
