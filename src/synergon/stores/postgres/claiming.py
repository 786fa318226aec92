"""Tasks are taken: the one place where `ready` becomes `running`."""

from __future__ import annotations

from typing import Any

from synergon.errors import LeaseLost
from synergon.records import Claim, ClaimRequest
from synergon.stores.postgres.session import Session


async def claim(session: Session, request: ClaimRequest) -> list[Claim]:
    """Take the first ready tasks in order, as many as the request has room for."""
    rows = await session.rows(
        "claim",
        request.node_id,
        [room.kind for room in request.rooms],
        [room.count for room in request.rooms],
        request.limit,
        sorted(request.queues) if request.queues is not None else None,
    )
    if not rows[0][0]:
        raise LeaseLost(f"node {request.node_id} has no lease and may not claim")
    taken = [row for row in rows if row["id"] is not None]
    taken.sort(key=lambda row: (-row["priority"], row["id"]))
    return [_claim(row) for row in taken]


def _claim(row: Any) -> Claim:
    _, task_id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin, _ = row
    return Claim(
        task_id,
        claim_no,
        kind,
        queue,
        payload.encode(),
        attempts,
        max_attempts,
        crashes,
        overrides.encode() if overrides is not None else None,
        tuple(tags) if tags else (),
        meta.encode() if meta is not None else None,
        origin,
    )
