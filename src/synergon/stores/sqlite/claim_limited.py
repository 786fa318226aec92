"""The claim where more than slots decides: requirements, limits, servers, rates, commands.

The write lock is held, so what is counted here stays true until the commit. What a task holds is written into its row
when it is taken, and nowhere else: usage is the number of running rows that name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from synergon.model.claims import ClaimRequest, Claims, KindRequest
from synergon.stores.rules.claim_plan import ClaimPlan, ReadyTask
from synergon.stores.rules.node_capacity import Fit, NodeCapacity, claim_order, may_reserve, requirements_of
from synergon.stores.rules.shared_capacity import Grant, HeldPermits, SharedCapacity
from synergon.stores.sqlite import reservations, servers
from synergon.stores.sqlite.follow_ups import draw
from synergon.stores.sqlite.key_queues import charge_starts
from synergon.stores.sqlite.limits import split
from synergon.stores.sqlite.ready_groups import (
    KIND,
    LIMIT_KEY,
    PRIORITY,
    Lane,
    Lanes,
    ready_task,
    target_of,
)
from synergon.stores.sqlite.transaction import Transaction, as_json

LOOKED_AT: Final = 1000
"""Tasks that are for certain servers: behind one that cannot run now there may be one that can."""


class TakenRow(NamedTuple):
    """A row that is taken, and the permits that it holds."""

    row: tuple[Any, ...]
    grant: Grant


def take(
    transaction: Transaction, request: ClaimRequest, lanes: Lanes, found: Sequence[Lane], claims: Claims
) -> list[TakenRow]:
    """Take the first ready tasks in order that the node can carry and that have a place in everything they need; beside
    that `claims` is told what it has to know."""
    rooms = _rooms(request, found)
    allotment = _allotment(transaction, rooms)
    candidates = _Candidates(request, lanes, allotment).of(found)
    reservations.hold_place(transaction, request, allotment)
    plan = ClaimPlan(request, allotment)
    taken = []
    for row in candidates:
        grant = plan.offer(_ready_task(transaction, request, row))
        if grant is not None:
            taken.append(TakenRow(row, grant))
    if taken:
        transaction.run("take_seats", request.node_id, transaction.now, as_json(_place(entry) for entry in taken))
        _charge(transaction, request, taken)
    claims.unfit = plan.unfit
    if plan.reserved is not None:
        claims.kept = reservations.keep(transaction, request, plan.reserved)
    else:
        claims.kept = reservations.renew(transaction, request, allotment)
    return taken


def _ready_task(transaction: Transaction, request: ClaimRequest, row: tuple[Any, ...]) -> ReadyTask:
    return ready_task(row, may_reserve=reservations.may_keep(transaction, request, row))


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


def _commands(lanes: Lanes, lane: Lane, allotment: SharedCapacity, limit: int) -> list[Any]:
    """Those for servers that have no room are left out: however many they are, they hide nobody."""
    if lane.room.provider is None:
        return lanes.first(lane, limit)
    servers = allotment.open_servers(lane.room.provider)
    return lanes.commands_for(lane, servers, limit) if servers else []


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


def _place(taken: TakenRow) -> tuple[Any, ...]:
    limits, provider, server, slot = taken.grant
    holds = "\n".join(limits) if limits or provider is not None else None
    return taken.row[0], holds, provider, server, slot


def _charge(transaction: Transaction, request: ClaimRequest, taken: list[TakenRow]) -> None:
    rated = {room.kind for room in request.kinds if room.is_rated}
    started = Counter(
        (row[KIND], row[LIMIT_KEY]) for row, _ in taken if row[KIND] in rated and row[LIMIT_KEY] is not None
    )
    if started:
        charge_starts(transaction, started)
        draw(transaction)
