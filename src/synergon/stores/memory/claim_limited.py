"""Claims where more than a slot of the node decides who may start: demands, limits, servers, commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Final

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.lifecycle import State
from synergon.model.requirements import is_suitable
from synergon.stores.memory.ready_groups import Lane
from synergon.stores.memory.reservations import hold_place, may_keep, ready_task
from synergon.stores.memory.row import Row
from synergon.stores.memory.servers import allotment
from synergon.stores.memory.tables import Tables
from synergon.stores.rules.claim_plan import ClaimPlan
from synergon.stores.rules.node_capacity import claim_order, requirements_of
from synergon.stores.rules.shared_capacity import Grant, SharedCapacity

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
        shared = _places(tables, request, now)
        if request.reserved_task is not None:
            hold_place(tables, request, shared, now)
        self.plan = ClaimPlan(request, shared)
        self._aside: list[tuple[Lane, Row]] = []

    def taken(self) -> Iterator[tuple[Row, Grant]]:
        """The tasks, each with its permits. The caller starts each before it asks for the next."""
        try:
            yield from self._taken()
        finally:
            for lane, row in self._aside:
                lane.add(row)

    def _taken(self) -> Iterator[tuple[Row, Grant]]:
        heads = self._heads()
        while heads:
            known, number, room, lane = heads[0]
            first = lane.head(self._now)
            if first is None:
                heappop(heads)
                continue
            row = lane.peek(first)
            task = ready_task(row, may_reserve=may_keep(self._tables, self._request, row, self._now))
            order = self.plan.order(task)
            if order != known:
                heapreplace(heads, (order, number, room, lane))
            elif (grant := self.plan.offer(task)) is not None:
                yield lane.pop(first), grant
            elif not self.plan.may_take_more(task) or (room.is_command and task.target is not None):
                heappop(heads)  # no task behind it in this group can be taken
            elif task.target is None or len(self._aside) >= MOST_ASIDE:
                heappop(heads)
            else:
                self._aside.append((lane, lane.pop(first)))

    def _heads(self) -> list[Head]:
        """A heap of the lanes that have something to offer to this node, by what they offer."""
        lanes = ((room, lane) for room in self._request.kinds if room.count > 0 for lane in self._lanes(room))
        heads = [
            (claim_order(room, -first[0], first[1], self._request.reserved_task), number, room, lane)
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


def _places(tables: Tables, request: ClaimRequest, now: int) -> SharedCapacity:
    is_shared = any(room.limits or room.provider is not None for room in request.kinds)
    return allotment(tables, now) if is_shared else SharedCapacity({}, (), ())
