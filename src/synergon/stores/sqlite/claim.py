"""Tasks are taken: the one place where `ready` becomes `running`."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any

from synergon.errors import LeaseLost
from synergon.model.claims import Claim, ClaimRequest, Claims
from synergon.stores.rules.node_capacity import most_without_requirements, needs_only_slots
from synergon.stores.sqlite.claim_limited import take
from synergon.stores.sqlite.nodes import standing
from synergon.stores.sqlite.ready_groups import DEMAND, SPARED_UNTIL, Lane, Lanes, merged, order_of
from synergon.stores.sqlite.transaction import Transaction, as_json, decode_tags


def claim(transaction: Transaction, request: ClaimRequest) -> Claims:
    """Take the first ready tasks in order, as many as the request has room for."""
    lease_left, is_cordoned = standing(transaction, request.node_id)
    if lease_left <= 0:
        raise LeaseLost(f"node {request.node_id} has no lease and may not claim")
    claims = Claims()
    if is_cordoned:
        claims.is_cordoned = True
        return claims
    lanes = Lanes(transaction, request.queues)
    found = lanes.of([room for room in request.kinds if room.count > 0])
    now = transaction.now
    if _is_plain(request, found):
        claims.extend(_claim(row, now) for row in _take_plain(transaction, request, lanes, found))
        return claims
    taken = take(transaction, request, lanes, found, claims)
    claims.extend(_claim(row, now, seat.server, seat.slot) for row, seat in taken)
    return claims


def _is_plain(request: ClaimRequest, found: list[Lane]) -> bool:
    """Whether nothing but numbers decides. What kinds without tasks would need does not matter."""
    return not any(lane.requirements for lane in found) and needs_only_slots(request, (lane.room for lane in found))


def _take_plain(transaction: Transaction, request: ClaimRequest, lanes: Lanes, found: list[Lane]) -> list[Any]:
    if request.limit <= 0 or not found:
        return []
    order = order_of(found)
    by_kind: list[list[Any]] = []
    for room, its_lanes in groupby(found, attrgetter("room")):
        most = min(most_without_requirements(request, room), request.limit)
        if most > 0:
            by_kind.append(merged([lanes.first(lane, most) for lane in its_lanes], most, order))
    rows = merged(by_kind, request.limit, order)
    if rows:
        transaction.run("claim", request.node_id, transaction.now, as_json(row[0] for row in rows))
    return rows


def _claim(row: tuple[Any, ...], now: int, server: str | None = None, slot: int | None = None) -> Claim:
    tags, protected_until = row[9], row[SPARED_UNTIL]
    return Claim(
        row[0],
        row[1] + 1,
        row[2],
        row[3],
        row[4],
        row[5] + 1,
        row[6],
        row[7],
        row[8],
        decode_tags(tags) if tags else (),
        row[10],
        row[11],
        row[12],
        row[13],
        server,
        slot,
        row[DEMAND],
        0 if protected_until is None else max(protected_until - now, 0),
    )
