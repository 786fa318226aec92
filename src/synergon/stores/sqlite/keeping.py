"""Room that is kept for a task which has waited long: its row says which node does, and until when."""

from __future__ import annotations

from synergon.records import ClaimRequest, Kept
from synergon.stores.sqlite.lanes import DEMAND, KIND, Lanes
from synergon.stores.sqlite.nodes import standing
from synergon.stores.sqlite.transaction import Transaction
from synergon.stores.weighing import demand_of


def may_keep(transaction: Transaction, request: ClaimRequest, task_id: int) -> bool:
    """Whether the node may begin to keep room for a ready task: for no other yet, this has waited, nobody else does."""
    if request.patience is None or request.kept_for is not None:
        return False
    run_at, kept_by, kept_until = transaction.row("keeping", task_id)
    return run_at <= transaction.now - request.patience and not _is_kept(transaction, request, kept_by, kept_until)


def _is_kept(transaction: Transaction, request: ClaimRequest, kept_by: str | None, kept_until: int | None) -> bool:
    """Whether a node other than this one, which is alive and not cordoned, keeps room for it."""
    if kept_by is None or kept_until is None or kept_by == request.node_id or kept_until <= transaction.now:
        return False
    lease_left, is_cordoned = standing(transaction, kept_by)
    return lease_left > 0 and not is_cordoned


def keep(transaction: Transaction, request: ClaimRequest, kept: Kept) -> Kept:
    """Write down that the node keeps room for it from now on."""
    transaction.run("keep", request.node_id, transaction.now + request.keep_for, kept.id)
    return kept


def renew(transaction: Transaction, request: ClaimRequest) -> Kept | None:
    """Go on keeping room for the task that the node has named, if it could still start and nobody else does."""
    if request.kept_for is None:
        return None
    rooms = {room.kind: room for room in request.rooms}
    for row in Lanes(transaction, None).among(rooms, [request.kept_for]):
        _, kept_by, kept_until = transaction.row("keeping", row[0])
        if not _is_kept(transaction, request, kept_by, kept_until):
            kept = Kept(id=row[0], kind=row[KIND], demand=demand_of(rooms[row[KIND]], row[DEMAND]))
            return keep(transaction, request, kept)
    return None
