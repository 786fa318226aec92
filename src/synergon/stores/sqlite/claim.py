"""Tasks are taken: the one place where `ready` becomes `running`."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any

from synergon.errors import LeaseLost
from synergon.model.claims import Claim, ClaimRequest, Claims
from synergon.stores.rules.node_capacity import most_without_requirements, needs_only_slots
from synergon.stores.sqlite.claim_limited import take
from synergon.stores.sqlite.nodes import lease_and_cordon
from synergon.stores.sqlite.ready_groups import REQUIREMENTS, SPARED_UNTIL, ReadyGroup, ReadyGroups, merged, order_of
from synergon.stores.sqlite.transaction import Transaction, as_json, decode_tags


def claim(transaction: Transaction, request: ClaimRequest) -> Claims:
    """Take the first ready tasks in order, as many as the request has room for."""
    lease_remaining, is_cordoned = lease_and_cordon(transaction, request.node_id)
    if lease_remaining <= 0:
        raise LeaseLost(f"node {request.node_id} has no lease and may not claim")
    claims = Claims()
    if is_cordoned:
        claims.is_cordoned = True
        return claims
    ready_groups = ReadyGroups(transaction, request.queues)
    found = ready_groups.of([kind_request for kind_request in request.kinds if kind_request.count > 0])
    now = transaction.now
    if _is_plain(request, found):
        claims.extend(_claim(row, now) for row in _take_plain(transaction, request, ready_groups, found))
        return claims
    taken = take(transaction, request, ready_groups, found, claims)
    claims.extend(_claim(row, now, grant.server, grant.slot) for row, grant in taken)
    return claims


def _is_plain(request: ClaimRequest, found: list[ReadyGroup]) -> bool:
    """Whether nothing but numbers decides. What kinds without tasks would need does not matter."""
    return not any(ready_group.requirements for ready_group in found) and needs_only_slots(
        request, (ready_group.kind_request for ready_group in found)
    )


def _take_plain(
    transaction: Transaction, request: ClaimRequest, ready_groups: ReadyGroups, found: list[ReadyGroup]
) -> list[Any]:
    if request.limit <= 0 or not found:
        return []
    order = order_of(found)
    by_kind: list[list[Any]] = []
    for kind_request, its_groups in groupby(found, attrgetter("kind_request")):
        most = min(most_without_requirements(request, kind_request), request.limit)
        if most > 0:
            by_kind.append(merged([ready_groups.first(ready_group, most) for ready_group in its_groups], most, order))
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
        row[REQUIREMENTS],
        0 if protected_until is None else max(protected_until - now, 0),
    )
