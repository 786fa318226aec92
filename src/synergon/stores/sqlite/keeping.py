"""Room that is kept for a task which has waited long: its row says which node does, and until when."""

from __future__ import annotations

from typing import Any

from synergon.records import ClaimRequest, Kept, Room
from synergon.stores.allotting import Allotment
from synergon.stores.sqlite.lanes import DEMAND, KIND, Lanes, candidate
from synergon.stores.sqlite.nodes import standing
from synergon.stores.sqlite.transaction import Transaction
from synergon.stores.weighing import demand_of


def may_keep(transaction: Transaction, request: ClaimRequest, task_id: int) -> bool:
    """Whether the node may begin to keep room for a ready task: this has waited, and nobody else does."""
    if request.patience is None:
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


def hold_place(transaction: Transaction, request: ClaimRequest, allotment: Allotment) -> None:
    """Others leave to the task that the node has named what it needs of that which all nodes share."""
    found = _found(transaction, request)
    if found is not None and any(room.limits or room.provider is not None for room in request.rooms):
        allotment.hold(found[0], candidate(found[1]))


def renew(transaction: Transaction, request: ClaimRequest, allotment: Allotment) -> Kept | None:
    """Go on keeping room for the task that the node has named, or let go of it if it could not start anyway."""
    if request.kept_for is None:
        return None
    found = _found(transaction, request)
    if found is None or allotment.take(found[0], candidate(found[1])) is None:
        transaction.run("let_go", request.kept_for, request.node_id)
        return None
    room, row = found
    return keep(transaction, request, Kept(id=request.kept_for, kind=room.kind, demand=demand_of(room, row[DEMAND])))


def _found(transaction: Transaction, request: ClaimRequest) -> tuple[Room, tuple[Any, ...]] | None:
    """The task that the node has named, if it is ready and the node may keep room for it."""
    if request.kept_for is None or request.keep_for <= 0:
        return None
    rooms = {room.kind: room for room in request.rooms}
    rows = Lanes(transaction, request.queues).among(rooms, [request.kept_for])
    if not rows:
        return None
    _, kept_by, kept_until = transaction.row("keeping", request.kept_for)
    return None if _is_kept(transaction, request, kept_by, kept_until) else (rooms[rows[0][KIND]], rows[0])
