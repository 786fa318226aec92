"""Claims where more than the node decides who may start: limits, servers, commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Final

from synergon.records import ClaimRequest, Room
from synergon.stores.allotting import Candidate, Seat
from synergon.stores.memory.lanes import Lane
from synergon.stores.memory.pools import allotment
from synergon.stores.memory.row import Row
from synergon.stores.memory.tables import Tables

MOST_ASIDE: Final = 1000
"""How many tasks that wait for one server are passed over in the search for one that does not."""

Head = tuple[bool, tuple[int, int], str, str, Lane]
"""What a lane offers: commands sort first, then priority and id decide."""


def open_lanes(tables: Tables, kind: str, queues: frozenset[str] | None) -> Iterator[Lane]:
    """The lanes of a kind from which may be taken."""
    lanes = tables.lanes.get(kind, {})
    for queue in lanes if queues is None else lanes.keys() & queues:
        if tables.queues[queue] is None:
            yield lanes[queue]


def seated(tables: Tables, request: ClaimRequest, now: int) -> Iterator[tuple[Row, Seat]]:
    """The first tasks in order that there is a place for, and that place. The caller starts each before the next."""
    aside: list[tuple[Lane, Row]] = []
    try:
        yield from _seated(tables, request, now, aside)
    finally:
        for lane, row in aside:
            lane.add(row)


def _seated(
    tables: Tables, request: ClaimRequest, now: int, aside: list[tuple[Lane, Row]]
) -> Iterator[tuple[Row, Seat]]:
    rooms = {room.kind: room for room in request.rooms}
    left = {room.kind: room.count for room in request.rooms}
    places = allotment(tables, now)
    heads = _heads(tables, request, now)
    others_left = request.limit
    while heads:
        is_other, place, kind, queue, lane = heads[0]
        if left[kind] <= 0 or (is_other and others_left <= 0):
            heappop(heads)
            continue
        row = lane.peek(place)
        seat = places.take(rooms[kind], _candidate(row))
        if seat is None and not is_other and row.task.target is not None:
            heappop(heads)  # all that are left in its lane are for the same server
            continue
        if seat is None and (row.task.target is None or len(aside) >= MOST_ASIDE):
            left[kind] = 0  # what one task without wishes does not get, no other one of its kind gets
            continue
        lane.pop(place)
        if seat is None:
            aside.append((lane, row))
        else:
            left[kind] -= 1
            others_left -= is_other
            yield row, seat
        following = lane.head(now)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (is_other, following, kind, queue, lane))


def _heads(tables: Tables, request: ClaimRequest, now: int) -> list[Head]:
    heads = [
        (not room.is_command, place, room.kind, lane.queue, lane)
        for room in request.rooms
        if room.count > 0
        for lane in _lanes(tables, room, request.queues)
        if (place := lane.head(now)) is not None
    ]
    heapify(heads)
    return heads


def _lanes(tables: Tables, room: Room, queues: frozenset[str] | None) -> Iterable[Lane]:
    """Commands are for a provider, and come from any queue."""
    if room.is_command:
        return tables.command_lanes.get(room.kind, {}).values()
    return open_lanes(tables, room.kind, queues)


def _candidate(row: Row) -> Candidate:
    avoid = row.server if row.attempts > 0 else None
    return Candidate(row.id, row.priority, row.task.kind, row.task.target, avoid)
