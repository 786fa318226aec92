"""The fast path of the claim, for tasks that need nothing but a slot: one statement moves them from `ready` to
`running`.

It exists only for PostgreSQL, where each statement of the rule would cost a round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from synergon.model.claims import Claim, ClaimRequest, Claims, KindRequest
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.postgres.transactions import Transactions
from synergon.stores.rules.claim import rejected
from synergon.stores.typed_rows import field_names, row_reader


class FastClaim(NamedTuple):
    """The result of a claim by the fast path."""

    claims: Claims
    with_requirements: frozenset[str] = frozenset()
    """Kinds with ready tasks that have requirements of their own. If there are any, nothing was claimed."""


async def claim_at_once(transactions: Transactions, request: ClaimRequest) -> FastClaim:
    """Claim the first ready tasks in claim order with one statement, at most as many as the request allows."""
    rows = await transactions.statement(_claim_at_once, request)
    if not rows[0]["is_open"]:
        return FastClaim(rejected_by(request.node_id, is_open=rows[0]["is_open"]))
    taken = in_order(request.kinds, (row for row in rows if row["id"] is not None))
    return FastClaim(taken, frozenset(rows[0]["with_requirements"]))


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


async def claim_one_kind(transactions: Transactions, request: ClaimRequest) -> Claims:
    """Like `claim_at_once`, for a request of one kind: with a shorter statement, which does not report why nothing was
    claimed."""
    return in_order(request.kinds, await transactions.statement(_claim_kind, request))


async def _claim_kind(transaction: Transaction, request: ClaimRequest) -> list[Any]:
    (kind_request,) = request.kinds
    most = min(kind_request.count, request.limit)
    return await transaction.rows("claim_kind", request.node_id, kind_request.kind, most, queues_of(request))


def queues_of(request: ClaimRequest) -> list[str] | None:
    """The queues of the request as a parameter of a statement."""
    return sorted(request.queues) if request.queues is not None else None


def rejected_by(node_id: str, *, is_open: bool | None) -> Claims:
    """Returns no claims if `is_open` is False: the node is cordoned. Raises `LeaseLost` if it is None: the node has no
    live lease."""
    return rejected(node_id, is_cordoned=None if is_open is None else not is_open)


def in_order(kinds: Iterable[KindRequest], taken: Iterable[Any]) -> Claims:
    """The claimed rows as claims, in claim order. The sort key omits commands, urgency and reservations, which the fast
    path never has, and takes a third of the time of `claim_order`. Turns of different kinds are never compared, because
    a kind with turns is claimed alone."""
    ranks = {kind.kind: kind.rank for kind in kinds}
    ordered = sorted(taken, key=lambda row: (-row["priority"], ranks[row["kind"]], row["fair_tag"], row["id"]))
    return Claims(map(claim_of, ordered))


def claim_of(row: Any) -> Claim:
    """Read a claim from a row of a claim statement. Before the columns of the claim, the row has two columns about node
    and kinds; after them, tag and priority."""
    return _read_claim(row[2:-2])


_read_claim: Final[Callable[[Sequence[Any]], Claim]] = row_reader(Claim, field_names(Claim))
