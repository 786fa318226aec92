"""The claim where limits, servers, rates or commands have a say.

The write lock is held, so what is counted here stays true until the commit. What a task holds is written into its row
when it is taken, and nowhere else: usage is the number of running rows that name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from synergon.records import ClaimRequest, Room
from synergon.stores.allotting import Allotment, Holding, Seat
from synergon.stores.sqlite import pools
from synergon.stores.sqlite.consequences import draw
from synergon.stores.sqlite.lanes import KIND, LIMIT_KEY, Lanes, candidate, order, target_of
from synergon.stores.sqlite.limiting import split
from synergon.stores.sqlite.lines import charge_starts
from synergon.stores.sqlite.transaction import Transaction, as_json

LOOKED_AT: Final = 1000
"""Tasks that are for certain servers: behind one that cannot run now there may be one that can."""


class Taken(NamedTuple):
    """A row that is taken, and what it holds."""

    row: tuple[Any, ...]
    seat: Seat


def take(transaction: Transaction, request: ClaimRequest) -> list[Taken]:
    """Take the first ready tasks in order that have a place in everything they need; commands before all else."""
    allotment = _allotment(transaction, request)
    taken = list(_choose(transaction, request, allotment))
    if taken:
        transaction.run("take_seats", request.node_id, transaction.now, as_json(_place(entry) for entry in taken))
        _charge(transaction, request, taken)
    return taken


def _allotment(transaction: Transaction, request: ClaimRequest) -> Allotment:
    providers = {room.provider for room in request.rooms if room.provider is not None}
    if not providers and not any(room.limits for room in request.rooms):
        return Allotment({}, (), ())  # rates and commands alone: nothing has to be counted
    holdings = [Holding(split(row[0]), *row[1:]) for row in transaction.rows("holdings")]
    return Allotment(dict(transaction.rows("limit_values")), pools.pool(transaction, providers), holdings)


def _choose(transaction: Transaction, request: ClaimRequest, allotment: Allotment) -> Iterator[Taken]:
    rooms = {room.kind: room for room in request.rooms}
    left = Counter({room.kind: room.count for room in request.rooms})
    others = request.limit
    for row in _candidates(transaction, request, allotment):
        room = rooms[row[KIND]]
        if left[room.kind] == 0 or (others == 0 and not room.is_command):
            continue
        seat = allotment.take(room, candidate(row))
        if seat is not None:
            left[room.kind] -= 1
            others -= not room.is_command
            yield Taken(row, seat)


def _candidates(transaction: Transaction, request: ClaimRequest, allotment: Allotment) -> list[Any]:
    lanes = Lanes(transaction, request.queues)
    commands: list[Any] = []
    tasks: list[Any] = []
    for room in request.rooms:
        if room.is_command:
            commands += _commands(lanes, room, allotment)
        else:
            tasks += _of_room(lanes, room, min(allotment.most(room), request.limit))
    return sorted(commands, key=lambda row: int(row[0])) + sorted(tasks, key=order)


def _commands(lanes: Lanes, room: Room, allotment: Allotment) -> list[Any]:
    """Those for servers that have no room are left out: however many they are, they hide nobody."""
    if room.count <= 0:
        return []
    if room.provider is None:
        return lanes.first_anywhere(room.kind, LOOKED_AT)
    servers = allotment.open_servers(room.provider)
    return lanes.first_for(room.kind, servers, LOOKED_AT) if servers else []


def _of_room(lanes: Lanes, room: Room, most: int) -> list[Any]:
    """Enough to fill the room. If there is none among them that wants a certain server, any place suits the first."""
    rows = lanes.first(room.kind, most)
    wants_server = room.provider is not None and len(rows) == most and any(map(target_of, rows))
    return lanes.first(room.kind, max(most, LOOKED_AT)) if wants_server else rows


def _place(taken: Taken) -> tuple[Any, ...]:
    limits, provider, server, slot = taken.seat
    holds = "\n".join(limits) if limits or provider is not None else None
    return taken.row[0], holds, provider, server, slot


def _charge(transaction: Transaction, request: ClaimRequest, taken: list[Taken]) -> None:
    rated = {room.kind for room in request.rooms if room.is_rated}
    started = Counter(
        (row[KIND], row[LIMIT_KEY]) for row, _ in taken if row[KIND] in rated and row[LIMIT_KEY] is not None
    )
    if started:
        charge_starts(transaction, started)
        draw(transaction)
