"""Room that is kept for a task which has waited long: its row says which node does, and until when."""

from __future__ import annotations

from typing import Any

from synergon.model.claims import ClaimRequest, KindRequest, ReservedTask
from synergon.stores.node_capacity import requirements_of
from synergon.stores.shared_capacity import SharedCapacity
from synergon.stores.sqlite.nodes import standing
from synergon.stores.sqlite.ready_groups import DEMAND, KIND, Lanes, candidate
from synergon.stores.sqlite.transaction import Transaction


def may_keep(transaction: Transaction, request: ClaimRequest, task_id: int) -> bool:
    """Whether the node may begin to keep room for a ready task: this has waited, and nobody else does."""
    if request.patience is None:
        return False
    run_at, reserved_by, reserved_until = transaction.row("keeping", task_id)
    return run_at <= transaction.now - request.patience and not _is_kept(
        transaction, request, reserved_by, reserved_until
    )


def _is_kept(
    transaction: Transaction, request: ClaimRequest, reserved_by: str | None, reserved_until: int | None
) -> bool:
    """Whether a node other than this one, which is alive and not cordoned, keeps room for it."""
    if (
        reserved_by is None
        or reserved_until is None
        or reserved_by == request.node_id
        or reserved_until <= transaction.now
    ):
        return False
    lease_left, is_cordoned = standing(transaction, reserved_by)
    return lease_left > 0 and not is_cordoned


def keep(transaction: Transaction, request: ClaimRequest, kept: ReservedTask) -> ReservedTask:
    """Write down that the node keeps room for it from now on."""
    transaction.run("keep", request.node_id, transaction.now + request.reserve_microseconds, kept.id)
    return kept


def hold_place(transaction: Transaction, request: ClaimRequest, allotment: SharedCapacity) -> None:
    """Others leave to the task that the node has named what it needs of that which all nodes share."""
    found = _found(transaction, request)
    if found is not None and any(room.limits or room.provider is not None for room in request.kinds):
        allotment.hold(found[0], candidate(found[1]))


def renew(transaction: Transaction, request: ClaimRequest, allotment: SharedCapacity) -> ReservedTask | None:
    """Go on keeping room for the task that the node has named, or let go of it if it could not start anyway."""
    if request.reserved_task is None:
        return None
    found = _found(transaction, request)
    if found is None or allotment.take(found[0], candidate(found[1])) is None:
        transaction.run("let_go", request.reserved_task, request.node_id)
        return None
    room, row = found
    return keep(
        transaction,
        request,
        ReservedTask(id=request.reserved_task, kind=room.kind, requirements=requirements_of(room, row[DEMAND])),
    )


def _found(transaction: Transaction, request: ClaimRequest) -> tuple[KindRequest, tuple[Any, ...]] | None:
    """The task that the node has named, if it is ready and the node may keep room for it."""
    if request.reserved_task is None or request.reserve_microseconds <= 0:
        return None
    rooms = {room.kind: room for room in request.kinds}
    rows = Lanes(transaction, request.queues).among(rooms, [request.reserved_task])
    if not rows:
        return None
    _, reserved_by, reserved_until = transaction.row("keeping", request.reserved_task)
    return None if _is_kept(transaction, request, reserved_by, reserved_until) else (rooms[rows[0][KIND]], rows[0])
