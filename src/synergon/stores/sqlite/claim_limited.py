"""The claim where more than slots decides: what tasks requirements of the node, limits, servers, rates, commands.

The write lock is held, so what is counted here stays true until the commit. What a task holds is written into its row
when it is taken, and nowhere else: usage is the number of running rows that name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from synergon.model.claims import CandidateQuery, ClaimRequest, Claims, KindRequest, ReservedTask
from synergon.model.requirements import NO_REQUIREMENTS, is_suitable
from synergon.stores.leaving import Elsewhere, Leaving, seen, sought
from synergon.stores.node_capacity import Fit, NodeCapacity, claim_order, may_reserve, requirements_of
from synergon.stores.shared_capacity import Grant, HeldPermits, SharedCapacity
from synergon.stores.sqlite import reservations, servers
from synergon.stores.sqlite.candidates import look as look_at
from synergon.stores.sqlite.follow_ups import draw
from synergon.stores.sqlite.key_queues import charge_starts
from synergon.stores.sqlite.limits import split
from synergon.stores.sqlite.ready_groups import (
    DEMAND,
    KIND,
    LIMIT_KEY,
    PRIORITY,
    Lane,
    Lanes,
    candidate,
    lane_of,
    target_of,
)
from synergon.stores.sqlite.transaction import Transaction, as_json

LOOKED_AT: Final = 1000
"""Tasks that are for certain servers: behind one that cannot run now there may be one that can."""


class Taken(NamedTuple):
    """A row that is taken, and what it holds."""

    row: tuple[Any, ...]
    seat: Grant


def take(
    transaction: Transaction, request: ClaimRequest, lanes: Lanes, found: Sequence[Lane], claims: Claims
) -> list[Taken]:
    """Take the first ready tasks in order that the node can carry and that have a place in everything they need; beside
    that `claims` is told what it has to know."""
    rooms = _rooms(request, found)
    allotment = _allotment(transaction, rooms)
    looks = _sought(request, found, allotment)
    if {look.room.provider for look in looks} - {room.provider for room in rooms}:
        allotment = _allotment(transaction, [*rooms, *(look.room for look in looks)])
    candidates = _Candidates(request, lanes, allotment).of(found)
    reservations.hold_place(transaction, request, allotment)
    elsewhere = [one for look in looks for one in _seen(transaction, look, lanes, allotment)]
    choice = _Choice(transaction, request, allotment, Leaving(request, allotment, elsewhere))
    taken = list(choice.of(candidates))
    if taken:
        transaction.run("take_seats", request.node_id, transaction.now, as_json(_place(entry) for entry in taken))
        _charge(transaction, request, taken)
    claims.left, claims.unserved, claims.unfit = choice.leaving.left, choice.leaving.unserved, choice.unfit
    claims.kept = choice.kept or reservations.renew(transaction, request, allotment)
    return taken


def _rooms(request: ClaimRequest, found: Sequence[Lane]) -> list[KindRequest]:
    """Those of which something might be taken, and that of the task that room is kept for."""
    only_looked_at = [room for room in request.kinds if room.count <= 0 and request.reserved_task is not None]
    return [lane.room for lane in found] + only_looked_at


def _allotment(transaction: Transaction, rooms: Sequence[KindRequest]) -> SharedCapacity:
    providers = {room.provider for room in rooms if room.provider is not None}
    if not providers and not any(room.limits for room in rooms):
        return SharedCapacity({}, (), ())  # rates, commands and demands alone: nothing has to be counted
    holdings = [HeldPermits(split(row[0]), *row[1:]) for row in transaction.rows("holdings")]
    return SharedCapacity(dict(transaction.rows("limit_values")), servers.pool(transaction, providers), holdings)


def _sought(request: ClaimRequest, found: Sequence[Lane], allotment: SharedCapacity) -> list[CandidateQuery]:
    """What only other nodes could take and may be better than something that there is a place for."""
    if not request.rivals:
        return []
    lanes = {(lane.room.kind, lane.requirements): lane.room for lane in found if allotment.most(lane.room) > 0}
    is_covered = allotment.is_covered(room.provider for room in lanes.values() if room.provider is not None)
    return sought(request, [(room, requirements) for (_, requirements), room in lanes.items()], is_covered=is_covered)


def _seen(transaction: Transaction, look: CandidateQuery, lanes: Lanes, allotment: SharedCapacity) -> list[Elsewhere]:
    if not look.room.is_command:
        return [seen(look, task) for task in look_at(transaction, look)]
    return [
        Elsewhere(look.room, candidate(row), lane.queue, lane.requirements)
        for lane in lanes.of([look.room])
        if is_suitable(requirements_of(look.room, lane.requirements), look.labels, look.totals)
        for row in _commands(lanes, lane, allotment, look.limit)
    ]


def _commands(lanes: Lanes, lane: Lane, allotment: SharedCapacity, limit: int) -> list[Any]:
    """Those for servers that have no room are left out: however many they are, they hide nobody."""
    if lane.room.provider is None:
        return lanes.first(lane, limit)
    servers = allotment.open_servers(lane.room.provider)
    return lanes.commands_for(lane, servers, limit) if servers else []


class _Choice:
    """Goes through candidates in order, and takes what the node and all that is shared have room for."""

    def __init__(
        self, transaction: Transaction, request: ClaimRequest, allotment: SharedCapacity, leaving: Leaving
    ) -> None:
        self._transaction = transaction
        self._request = request
        self.leaving = leaving
        self._allotment = allotment
        self._scales = NodeCapacity(request)
        self._rooms = {room.kind: room for room in request.kinds}
        self._left = Counter({room.kind: room.count for room in request.kinds})
        self._weightless = {
            room.kind
            for room in request.kinds
            if room.requirements == NO_REQUIREMENTS and request.reserved_task is None
        }
        """Kinds whose tasks, if they say nothing, need not be weighed."""
        self._closed: set[tuple[str, str, str]] = set()
        """Lanes whose first did not fit: none behind it does."""
        self.kept: ReservedTask | None = None

    @property
    def unfit(self) -> frozenset[str]:
        return frozenset(self._scales.unfit)

    def of(self, candidates: Sequence[Any]) -> Iterator[Taken]:
        for row in candidates:
            room = self._rooms[row[KIND]]
            has_slot = self._scales.slots(room) > 0
            if self._left[room.kind] <= 0 or not (has_slot or self._scales.may_keep):
                continue
            # One that does not fit may have room kept for it although all slots are gone: they come back one by one,
            # and what it waits for comes back only if it is kept.
            seat = self._seat(room, row) if self._fits(room, row) and has_slot else None
            if seat is not None:
                self._left[room.kind] -= 1
                yield Taken(row, seat)
            elif self.kept is not None:
                return

    def _is_weightless(self, room: KindRequest, row: tuple[Any, ...]) -> bool:
        return not row[DEMAND] and room.kind in self._weightless

    def _fits(self, room: KindRequest, row: tuple[Any, ...]) -> bool:
        if self._is_weightless(room, row):
            return True
        task_id, lane = row[0], lane_of(row)
        is_kept = task_id == self._request.reserved_task
        if lane in self._closed and not is_kept:
            return False
        fit = self._scales.fit(room, requirements_of(room, row[DEMAND]), task_id)
        if fit is not Fit.NOW and not is_kept:
            self._closed.add(lane)
            if fit is Fit.LATER and self._scales.may_keep:
                self._consider(room, row)
        return fit is Fit.NOW

    def _seat(self, room: KindRequest, row: tuple[Any, ...]) -> Grant | None:
        if self.leaving.is_any:
            self.leaving.let_pass(claim_order(room, row[PRIORITY], row[0], self._request.reserved_task))
        seat = self._allotment.take(room, candidate(row))
        if seat is None:
            self.leaving.refused(room, candidate(row))
        else:
            self.leaving.taken(row[0])
            requirements = NO_REQUIREMENTS if self._is_weightless(room, row) else requirements_of(room, row[DEMAND])
            self._scales.take(room, requirements, row[0])
        return seat

    def _consider(self, room: KindRequest, row: tuple[Any, ...]) -> None:
        """Keep room for the task if it may be overtaken; not, if it could not start anyway for want of a place."""
        task_id, requirements = row[0], requirements_of(room, row[DEMAND])
        if not reservations.may_keep(self._transaction, self._request, task_id):
            return
        if self._allotment.has_place(room, candidate(row)) and self._scales.is_worth_keeping(
            room, requirements, task_id
        ):
            kept = ReservedTask(id=task_id, kind=room.kind, requirements=requirements)
            self.kept = reservations.keep(self._transaction, self._request, kept)


class _Candidates:
    """Enough rows of each lane to fill the node, and one more that it might keep room for."""

    def __init__(self, request: ClaimRequest, lanes: Lanes, allotment: SharedCapacity) -> None:
        self._request = request
        self._lanes = lanes
        self._allotment = allotment
        # What is held for a task is free again when that one is taken, so that more may follow it.
        self._scales = NodeCapacity(replace(request, held={}))

    def of(self, found: Sequence[Lane]) -> list[Any]:
        rooms = {room.kind: room for room in self._request.kinds}
        lists = [rows for lane in found if lane.room.only is None and (rows := self._of_lane(lane))]
        named = self._named(rooms)
        if len(lists) == 1 and not named:
            return lists[0]
        reserved_task = self._request.reserved_task
        by_id = {row[0]: row for row in chain(*lists, named)}
        return sorted(
            by_id.values(), key=lambda row: claim_order(rooms[row[KIND]], row[PRIORITY], row[0], reserved_task)
        )

    def _named(self, rooms: Mapping[str, KindRequest]) -> list[Any]:
        """Those that rooms name, and the one that room is kept for, if its own room does not leave it out."""
        only = {room.kind: frozenset(room.only) for room in rooms.values() if room.only is not None}
        reserved_task = [] if self._request.reserved_task is None else [self._request.reserved_task]
        named = [*chain.from_iterable(only.values()), *reserved_task]
        rows = self._lanes.among(rooms, named) if named else []
        return [row for row in rows if row[0] in only.get(row[KIND], reserved_task)]

    def _of_lane(self, lane: Lane) -> list[Any]:
        room, requirements = lane.room, requirements_of(lane.room, lane.requirements)
        if self._scales.fit(room, requirements) is Fit.NEVER:
            return []
        if room.is_command:
            return _commands(self._lanes, lane, self._allotment, LOOKED_AT)
        most = min(self._allotment.most(room), self._scales.slots(room) + may_reserve(self._request))
        return self._first(lane, min(most, self._scales.most(room, requirements) + 1)) if most > 0 else []

    def _first(self, lane: Lane, most: int) -> list[Any]:
        """If there is none among them that wants a certain server, any place suits the first."""
        rows = self._lanes.first(lane, most)
        wants_server = lane.room.provider is not None and len(rows) == most and any(map(target_of, rows))
        return self._lanes.first(lane, max(most, LOOKED_AT)) if wants_server else rows


def _place(taken: Taken) -> tuple[Any, ...]:
    limits, provider, server, slot = taken.seat
    holds = "\n".join(limits) if limits or provider is not None else None
    return taken.row[0], holds, provider, server, slot


def _charge(transaction: Transaction, request: ClaimRequest, taken: list[Taken]) -> None:
    rated = {room.kind for room in request.kinds if room.is_rated}
    started = Counter(
        (row[KIND], row[LIMIT_KEY]) for row, _ in taken if row[KIND] in rated and row[LIMIT_KEY] is not None
    )
    if started:
        charge_starts(transaction, started)
        draw(transaction)
