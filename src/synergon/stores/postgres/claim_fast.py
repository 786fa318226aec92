"""Tasks are taken where nothing but the node's slots decides how many: the short way from `ready` to `running`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from synergon.model.claims import Claim, ClaimRequest, Claims, KindRequest
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rules.claim import rejected
from synergon.stores.typed_rows import field_names, row_reader

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
        return AtOnce(rejected_by(request.node_id, is_open=rows[0]["is_open"]))
    taken = in_order(request.kinds, (row for row in rows if row["id"] is not None))
    return AtOnce(taken, frozenset(rows[0]["demanding"]))


async def _claim_at_once(transaction: Transaction, request: ClaimRequest) -> list[Any]:
    return await transaction.rows(
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


async def _claim_kind(transaction: Transaction, request: ClaimRequest) -> list[Any]:
    (kind_request,) = request.kinds
    most = min(kind_request.count, request.limit)
    return await transaction.rows("claim_kind", request.node_id, kind_request.kind, most, queues_of(request))


async def _claim_more(transaction: Transaction, request: ClaimRequest) -> list[Any]:
    return await transaction.rows(
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


def rejected_by(node_id: str, *, is_open: bool | None) -> Claims:
    """The answer to a node whose lease is over (None), or that is cordoned."""
    return rejected(node_id, is_cordoned=None if is_open is None else not is_open)


def in_order(kinds: Iterable[KindRequest], taken: Iterable[Any]) -> Claims:
    """The rows that a plain claim has taken, in claim order: `claim_order` without commands, urgency and reservations,
    which the fast path does not meet, takes a third of the time."""
    ranks = {kind.kind: kind.rank for kind in kinds}
    ordered = sorted(taken, key=lambda row: (-row["priority"], ranks[row["kind"]], row["id"]))
    return Claims(map(claim_of, ordered))


def claim_of(row: Any) -> Claim:
    """The claim that a row of a statement stands for, which has taken it. Before the columns of the claim stands what
    the statement found of the node and of the kinds, behind them the priority."""
    return _read_claim(row[2:-1])


_read_claim: Final[Callable[[Sequence[Any]], Claim]] = row_reader(Claim, field_names(Claim))
