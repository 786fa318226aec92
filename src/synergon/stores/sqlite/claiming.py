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
    tags = row[9]
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
    )


_TAGS = msgspec.json.Decoder(tuple[str, ...])


def decode_tags(tags: str | None) -> tuple[str, ...]:
    """Tags from the row."""
    return _TAGS.decode(tags) if tags else ()
