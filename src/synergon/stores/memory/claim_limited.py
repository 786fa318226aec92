"""Claims where more than a slot of the node decides who may start: demands, limits, servers, commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Final

from synergon.model.claims import CandidateQuery, ClaimRequest, KindRequest, ReservedTask
from synergon.model.lifecycle import State
from synergon.model.requirements import is_suitable
from synergon.stores.leaving import Elsewhere, Leaving, sought
from synergon.stores.memory.ready_groups import Lane
from synergon.stores.memory.reservations import candidate, hold_place, keep, may_keep
from synergon.stores.memory.row import Row
from synergon.stores.memory.servers import allotment
from synergon.stores.memory.tables import Tables
from synergon.stores.node_capacity import Fit, NodeCapacity, claim_order, requirements_of
from synergon.stores.shared_capacity import Grant, SharedCapacity

MOST_ASIDE: Final = 1000
"""How many tasks that wait for one server are passed over in the search for one that does not."""

Head = tuple[tuple[bool, bool, int, int, int], int, KindRequest, Lane]
"""Where the first task of a lane stands, a number that no other head has, and where it came from."""


def open_lanes(tables: Tables, kind: str, queues: frozenset[str] | None) -> Iterator[Lane]:
    """The lanes of a kind from which may be taken."""
    return (lane for lane in tables.ready.lanes(kind, queues) if tables.queues[lane.queue] is None)


class Seating:
    """One claim: the first tasks in order that the node can carry and that there is a place for."""

    def __init__(self, tables: Tables, request: ClaimRequest, now: int) -> None:
        self._tables = tables
        self._request = request
        self._now = now
        self._left = {room.kind: room.count for room in request.kinds}
        self.places = _places(tables, request, now)
        if request.reserved_task is not None:
            hold_place(tables, request, self.places, now)
        self._scales = NodeCapacity(request)
        self.leaving = Leaving(request, self.places, self._elsewhere())
        """What is left to tasks of other nodes."""
        self._aside: list[tuple[Lane, Row]] = []
        self.kept: ReservedTask | None = None
        """The task that the node keeps room for from now on."""

    @property
    def unfit(self) -> frozenset[str]:
        """Kinds of which something fits later and not now."""
        return frozenset(self._scales.unfit)

    def _elsewhere(self) -> list[Elsewhere]:
        """What only other nodes could take and may be better than something that there is a place for."""
        if not self._request.rivals:
            return []
        lanes = {
            (room.kind, lane.requirements): room
            for room in self._request.kinds
            if self.places.most(room) > 0
            for lane in self._open_to(room, self._request.queues)
            if lane.count
        }
        is_covered = self.places.is_covered(room.provider for room in lanes.values() if room.provider is not None)
        ours = [(room, requirements) for (_, requirements), room in lanes.items()]
        looks = sought(self._request, ours, is_covered=is_covered)
        return [one for look in looks for one in self._first(look)]

    def _first(self, look: CandidateQuery) -> list[Elsewhere]:
        rows: dict[int, Row] = {}
        for lane in self._open_to(look.room, look.queues):
            if is_suitable(requirements_of(look.room, lane.requirements), look.labels, look.totals):
                rows |= {row.id: row for row in lane.first(look.limit, self._now)}
        in_order = sorted(rows.values(), key=lambda row: (-row.priority, row.id))
        return [
            Elsewhere(look.room, candidate(row), row.task.queue, row.task.requirements)
            for row in in_order[: look.limit]
        ]

    def _open_to(self, room: KindRequest, queues: frozenset[str] | None) -> Iterable[Lane]:
        """The lanes of a kind from which may be taken. Commands for servers that have no room are left out: however
        many they are, they hide nobody."""
        if not room.is_command:
            return open_lanes(self._tables, room.kind, queues)
        lanes = self._tables.ready.command_lanes(room.kind)
        servers = set() if room.provider is None else {None, *self.places.open_servers(room.provider)}
        return (lane for lane in lanes if lane.target in servers) if len(servers) > 1 else ()

    def taken(self) -> Iterator[tuple[Row, Grant]]:
        """The tasks, each with its place. The caller starts each before it asks for the next."""
        try:
            yield from self._taken()
        finally:
            for lane, row in self._aside:
                lane.add(row)

    def _taken(self) -> Iterator[tuple[Row, Grant]]:
        heads = self._heads()
        while heads and self.kept is None:
            known, number, room, lane = heads[0]
            first = lane.head(self._now)
            if first is None or not self._may_take_or_keep(room):
                heappop(heads)
            elif (now_known := self._place(room, first)) != known:
                heapreplace(heads, (now_known, number, room, lane))
            elif not self._fits(room, lane, lane.peek(first)) or self._scales.slots(room) <= 0:
                heappop(heads)  # what is behind it demands the same
            elif (seat := self._seat(room, lane, lane.peek(first))) is None:
                self._pass_over(heads, room, lane, first)
            else:
                yield lane.pop(first), seat

    def _heads(self) -> list[Head]:
        """A heap of the lanes that have something to offer to this node, by what they offer."""
        lanes = ((room, lane) for room in self._request.kinds if room.count > 0 for lane in self._lanes(room))
        heads = [
            (self._place(room, first), number, room, lane)
            for number, (room, lane) in enumerate(lanes)
            if (first := lane.head(self._now)) is not None
        ]
        heapify(heads)
        return heads

    def _lanes(self, room: KindRequest) -> list[Lane]:
        request = self._request
        found: Iterable[Lane]
        if room.is_command:  # these are for a provider, and come from any queue
            found = self._tables.ready.command_lanes(room.kind)
        elif room.only is None:
            found = [
                *open_lanes(self._tables, room.kind, request.queues),
                *self._lanes_of(room, [request.reserved_task]),
            ]
        else:
            reserved_task = [task_id for task_id in room.only if task_id == request.reserved_task]
            found = [*self._lanes_of(room, room.only), *self._lanes_of(room, reserved_task)]
        return [
            lane
            for lane in found
            if is_suitable(requirements_of(room, lane.requirements), request.labels, request.totals)
        ]

    def _lanes_of(self, room: KindRequest, ids: Iterable[int | None]) -> Iterable[Lane]:
        """Lanes of these tasks alone, beside those in which they stand."""
        queues = self._request.queues
        lanes: dict[tuple[str, str], Lane] = {}
        for row in (self._tables.rows.get(task_id or 0) for task_id in ids):
            if row is None or row.state is not State.READY or row.task.kind != room.kind or row.task.is_command:
                continue
            name = row.task.queue, row.task.requirements
            if self._tables.queues[name[0]] is None and (queues is None or name[0] in queues):
                lanes.setdefault(name, Lane(*name)).add(row)
        return lanes.values()

    def _place(self, room: KindRequest, first: tuple[int, int]) -> tuple[bool, bool, int, int, int]:
        return claim_order(room, -first[0], first[1], self._request.reserved_task)

    def _may_take_or_keep(self, room: KindRequest) -> bool:
        """One that does not fit may have room kept for it although all slots are gone: they come back one by one, and
        what it waits for comes back only if it is kept."""
        return self._left[room.kind] > 0 and (self._scales.slots(room) > 0 or self._scales.may_keep)

    def _fits(self, room: KindRequest, lane: Lane, row: Row) -> bool:
        requirements = requirements_of(room, lane.requirements)
        fit = self._scales.fit(room, requirements, row.id)
        may_be_kept = fit is Fit.LATER and self._scales.may_keep
        may_be_kept = may_be_kept and may_keep(self._tables, self._request, row, self._now)
        may_be_kept = may_be_kept and self.places.has_place(room, candidate(row))
        if may_be_kept and self._scales.is_worth_keeping(room, requirements, row.id):
            self.kept = keep(row, self._request, requirements, self._now)
        return fit is Fit.NOW

    def _seat(self, room: KindRequest, lane: Lane, row: Row) -> Grant | None:
        if self.leaving.is_any:
            self.leaving.let_pass(self._place(room, (-row.priority, row.id)))
        seat = self.places.take(room, candidate(row))
        if seat is None:
            self.leaving.refused(room, candidate(row))
        else:
            self.leaving.taken(row.id)
            self._scales.take(room, requirements_of(room, lane.requirements), row.id)
            self._left[room.kind] -= 1
        return seat

    def _pass_over(self, heads: list[Head], room: KindRequest, lane: Lane, first: tuple[int, int]) -> None:
        """There is no place for the first task of the lane."""
        target = lane.peek(first).task.target
        if room.is_command and target is not None:
            heappop(heads)  # all that are left in its lane are for the same server
        elif target is None or len(self._aside) >= MOST_ASIDE:
            self._left[room.kind] = 0  # what one task without wishes does not get, no other one of its kind gets
        else:
            self._aside.append((lane, lane.pop(first)))


def _places(tables: Tables, request: ClaimRequest, now: int) -> SharedCapacity:
    is_shared = any(room.limits or room.provider is not None for room in request.kinds)
    return allotment(tables, now) if is_shared else SharedCapacity({}, (), ())
