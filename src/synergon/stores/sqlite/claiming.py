"""Tasks are taken: the one place where `ready` becomes `running`."""

from __future__ import annotations

from typing import Any

import msgspec

from synergon.errors import LeaseLost
from synergon.records import Claim, ClaimRequest
from synergon.stores.sqlite.lanes import Lanes, merged
from synergon.stores.sqlite.nodes import lease_left
from synergon.stores.sqlite.seats import take
from synergon.stores.sqlite.transaction import Transaction, as_json


def claim(transaction: Transaction, request: ClaimRequest) -> list[Claim]:
    """Take the first ready tasks in order, as many as the request has room for."""
    if lease_left(transaction, request.node_id) <= 0:
        raise LeaseLost(f"node {request.node_id} has no lease and may not claim")
    if all(room.is_free for room in request.rooms):
        return [_claim(row) for row in _take_free(transaction, request)]
    return [_claim(row, seat.server, seat.slot) for row, seat in take(transaction, request)]


def _take_free(transaction: Transaction, request: ClaimRequest) -> list[Any]:
    lanes = Lanes(transaction, request.queues)
    by_kind = [lanes.first(room.kind, min(room.count, request.limit)) for room in request.rooms]
    rows = merged(by_kind, request.limit)
    if rows:
        transaction.run("claim", request.node_id, transaction.now, as_json(row[0] for row in rows))
    return rows


def _claim(row: tuple[Any, ...], server: str | None = None, slot: int | None = None) -> Claim:
    (
        task_id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
        limit_key, group_id, _, _, _,
    ) = row  # fmt: skip
    return Claim(
        task_id,
        claim_no + 1,
        kind,
        queue,
        payload,
        attempts + 1,
        max_attempts,
        crashes,
        overrides,
        decode_tags(tags) if tags else (),
        meta,
        origin,
        limit_key,
        group_id,
        server,
        slot,
    )


_TAGS = msgspec.json.Decoder(tuple[str, ...])


def decode_tags(tags: str | None) -> tuple[str, ...]:
    """Tags from the row."""
    return _TAGS.decode(tags) if tags else ()
