"""Tasks are taken: the one place where `ready` becomes `running`."""

from __future__ import annotations

from heapq import merge
from itertools import islice
from typing import Any

import msgspec

from synergon.errors import LeaseLost
from synergon.records import Claim, ClaimRequest
from synergon.stores.sqlite.nodes import lease_left
from synergon.stores.sqlite.transaction import Transaction, as_json


def claim(transaction: Transaction, request: ClaimRequest) -> list[Claim]:
    """Take the first ready tasks in order, as many as the request has room for."""
    if lease_left(transaction, request.node_id) <= 0:
        raise LeaseLost(f"node {request.node_id} has no lease and may not claim")
    rows = _first_ready(transaction, request)
    if rows:
        transaction.run("claim", request.node_id, transaction.now, as_json(row[0] for row in rows))
    return [_claim(row) for row in rows]


def _first_ready(transaction: Transaction, request: ClaimRequest) -> list[Any]:
    """One index probe per kind and queue that has ready tasks, merged; what nobody asked for is never looked at."""
    paused = {row[0] for row in transaction.rows("paused_queues")}
    by_kind = []
    for room in request.rooms:
        queues = [row[0] for row in transaction.rows("queues_of_kind", room.kind) if row[0] not in paused]
        if request.queues is not None:
            queues = [name for name in queues if name in request.queues]
        by_kind.append(_of_kind(transaction, room.kind, queues, min(room.count, request.limit)))
    by_kind = [rows for rows in by_kind if rows]
    if len(by_kind) == 1:
        return by_kind[0]
    return list(islice(merge(*by_kind, key=_order), request.limit))


def _of_kind(transaction: Transaction, kind: str, queues: list[str], limit: int) -> list[Any]:
    now = transaction.now
    lanes = [transaction.rows("ready", kind, queue, now, limit) for queue in queues]
    lanes = [rows for rows in lanes if rows]
    return lanes[0] if len(lanes) == 1 else list(islice(merge(*lanes, key=_order), limit))


def _order(row: tuple[Any, ...]) -> tuple[int, int]:
    return -row[-1], row[0]


def _claim(row: tuple[Any, ...]) -> Claim:
    task_id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin, _ = row
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
    )


_TAGS = msgspec.json.Decoder(tuple[str, ...])


def decode_tags(tags: str | None) -> tuple[str, ...]:
    """Tags from the row."""
    return _TAGS.decode(tags) if tags else ()
