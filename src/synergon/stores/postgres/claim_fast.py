"""Tasks are taken where nothing but the node's slots decides how many: the short way from `ready` to `running`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from synergon.errors import LeaseLost
from synergon.model.claims import Claim, ClaimRequest, Claims, KindRequest
from synergon.stores.postgres.session import Session
from synergon.stores.rules.node_capacity import claim_order

Run = Callable[..., Awaitable[Any]]
"""Runs a piece of work, which is given a session and the further arguments, as a transaction of its own."""


class AtOnce(NamedTuple):
    """What came of a claim on the short way."""

    claims: Claims
    demanding: frozenset[str] = frozenset()
    """Kinds with ready tasks that require something of their own: nothing was taken, they must be weighed first."""


async def claim_at_once(run: Run, request: ClaimRequest) -> AtOnce:
    """Take the first ready tasks in order, as many as the request has room for; one statement."""
    rows: Sequence[Any] = await run(_claim_at_once, request)
    if not rows[0]["is_open"]:
        return AtOnce(shut_out(request.node_id, is_leased=rows[0]["is_open"] is not None))
    taken = in_order(request.kinds, (row for row in rows if row["id"] is not None))
    return AtOnce(taken, frozenset(rows[0]["demanding"]))


async def _claim_at_once(session: Session, request: ClaimRequest) -> list[Any]:
    return await session.rows(
        "claim",
        request.node_id,
        [kind_request.kind for kind_request in request.kinds],
        [kind_request.count for kind_request in request.kinds],
        request.limit,
        queues_of(request),
        [kind_request.rank for kind_request in request.kinds],
    )


async def claim_shortly(run: Run, request: ClaimRequest) -> Claims:
    """The same by a shorter statement, which does not say why nothing was taken. Of several kinds it is for requests
    that have as much room for each as for all."""
    return in_order(request.kinds, await run(_claim_kind if len(request.kinds) == 1 else _claim_more, request))


async def _claim_kind(session: Session, request: ClaimRequest) -> list[Any]:
    (kind_request,) = request.kinds
    most = min(kind_request.count, request.limit)
    return await session.rows("claim_kind", request.node_id, kind_request.kind, most, queues_of(request))


async def _claim_more(session: Session, request: ClaimRequest) -> list[Any]:
    return await session.rows(
        "claim_more",
        request.node_id,
        [kind_request.kind for kind_request in request.kinds],
        [kind_request.rank for kind_request in request.kinds],
        request.limit,
        queues_of(request),
    )


def queues_of(request: ClaimRequest) -> list[str] | None:
    """As a statement takes them."""
    return sorted(request.queues) if request.queues is not None else None


def shut_out(node_id: str, *, is_leased: bool) -> Claims:
    """Whoever is cordoned takes nothing, nor does anyone who may be dead by the store's clock."""
    if not is_leased:
        raise LeaseLost(f"node {node_id} has no lease and may not claim")
    claims = Claims()
    claims.is_cordoned = True
    return claims


def in_order(kind_requests: Iterable[KindRequest], taken: Iterable[Any], reserved_task: int | None = None) -> Claims:
    """The rows that a claim has taken, as others get them."""
    of_kind = {kind_request.kind: kind_request for kind_request in kind_requests}
    if reserved_task is None and not any(
        kind_request.is_command or kind_request.is_urgent for kind_request in of_kind.values()
    ):
        # `claim_order` comes to the same, and takes three times as long.
        ordered = sorted(taken, key=lambda row: (-row["priority"], of_kind[row["kind"]].rank, row["id"]))
    else:
        ordered = sorted(
            taken, key=lambda row: claim_order(of_kind[row["kind"]], row["priority"], row["id"], reserved_task)
        )
    return Claims(map(_claim, ordered))


def _claim(row: Any) -> Claim:
    (
        _, _, task_id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
        limit_key, group_id, server, slot, requirements, protected_for, _,
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
        requirements,
        protected_for,
    )
