"""Tasks are taken: the one place where `ready` becomes `running`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable
from typing import Any

from msgspec.structs import replace

from synergon.errors import LeaseLost
from synergon.records import Claim, ClaimRequest
from synergon.stores.postgres.session import Session

Run = Callable[..., Awaitable[Any]]
"""Runs a piece of work, which is given a session and the further arguments, as a transaction of its own."""


async def claim_at_once(run: Run, request: ClaimRequest) -> list[Claim]:
    """Take the first ready tasks in order, as many as the request has room for; one statement."""
    claims: list[Claim] = await run(_claim_at_once, request)
    return claims


async def _claim_at_once(session: Session, request: ClaimRequest) -> list[Claim]:
    rows = await session.rows(
        "claim",
        request.node_id,
        [room.kind for room in request.rooms],
        [room.count for room in request.rooms],
        request.limit,
        sorted(request.queues) if request.queues is not None else None,
    )
    if not rows[0][0]:
        raise lease_lost(request.node_id)
    return in_order(row for row in rows if row["id"] is not None)


async def look(session: Session, request: ClaimRequest) -> ClaimRequest:
    """What is left of the request without kinds that have no ready task; nothing is locked for those."""
    rooms = {room.kind: room for room in request.rooms if room.count > 0}
    is_leased, kinds = await session.row("look", request.node_id, list(rooms))
    if not is_leased:
        raise lease_lost(request.node_id)
    return replace(request, rooms=tuple(rooms[kind] for kind in kinds))


def lease_lost(node_id: str) -> LeaseLost:
    """Whoever may be dead by the store's clock takes nothing."""
    return LeaseLost(f"node {node_id} has no lease and may not claim")


def in_order(taken: Iterable[Any], commands: Container[str] = ()) -> list[Claim]:
    """The rows that a claim has taken, as others get them; those of the kinds `commands` come first."""
    in_turn = sorted(taken, key=lambda row: (row["kind"] not in commands, -row["priority"], row["id"]))
    return [_claim(row) for row in in_turn]


def _claim(row: Any) -> Claim:
    (
        _, task_id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
        limit_key, group_id, server, slot, _,
    ) = row  # fmt: skip
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
        limit_key,
        group_id,
        server if slot is not None else None,
        slot,
    )
