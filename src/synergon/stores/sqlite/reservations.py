"""Room that is kept for a task which has waited long: its row says which node does, and until when."""

from __future__ import annotations

from typing import Any

from synergon.model.claims import ClaimRequest, KindRequest, ReservedTask
from synergon.stores.rules.claim_plan import ReadyTask
from synergon.stores.rules.node_capacity import may_reserve, requirements_of
from synergon.stores.rules.shared_capacity import SharedCapacity
from synergon.stores.sqlite.nodes import standing
from synergon.stores.sqlite.ready_groups import KIND, RESERVED_BY, RESERVED_UNTIL, RUN_AT, Lanes, ready_task
from synergon.stores.sqlite.transaction import Transaction


def may_keep(transaction: Transaction, request: ClaimRequest, row: tuple[Any, ...]) -> bool:
    """Whether the node may reserve capacity for a ready task: it has waited for long enough, and no other node has."""
    if not may_reserve(request) or request.patience is None:
        return False
    return row[RUN_AT] <= transaction.now - request.patience and not _is_kept(transaction, request, row)


def _is_kept(transaction: Transaction, request: ClaimRequest, row: tuple[Any, ...]) -> bool:
    """Whether a node other than this one, which is alive and not cordoned, has reserved capacity for it."""
    reserved_by = row[RESERVED_BY]
    if reserved_by is None or reserved_by == request.node_id or row[RESERVED_UNTIL] <= transaction.now:
        return False
    lease_left, is_cordoned = standing(transaction, reserved_by)
    return lease_left > 0 and not is_cordoned


def keep(transaction: Transaction, request: ClaimRequest, task: ReadyTask) -> ReservedTask:
    """Reserve capacity for the task from now on."""
    room = next(room for room in request.kinds if room.kind == task.kind)
    transaction.run("keep", request.node_id, transaction.now + request.reserve_microseconds, task.id)
    return ReservedTask(id=task.id, kind=task.kind, requirements=requirements_of(room, task.requirements))


def hold_place(transaction: Transaction, request: ClaimRequest, allotment: SharedCapacity) -> None:
    """Others leave to the task that the node has named what it needs of that which all nodes share."""
    found = _found(transaction, request)
    if found is not None and any(room.limits or room.provider is not None for room in request.kinds):
        allotment.hold(found[0], ready_task(found[1]))


def renew(transaction: Transaction, request: ClaimRequest, allotment: SharedCapacity) -> ReservedTask | None:
    """Go on keeping room for the task that the node has named, or let go of it if it could not start anyway."""
    if request.reserved_task is None:
        return None
    found = _found(transaction, request)
    if found is None or allotment.take(found[0], ready_task(found[1])) is None:
        transaction.run("let_go", request.reserved_task, request.node_id)
        return None
    return keep(transaction, request, ready_task(found[1]))


def _found(transaction: Transaction, request: ClaimRequest) -> tuple[KindRequest, tuple[Any, ...]] | None:
    """The task that the node has named, if it is ready and the node may keep room for it."""
    if request.reserved_task is None or request.reserve_microseconds <= 0:
        return None
    rooms = {room.kind: room for room in request.kinds}
    rows = Lanes(transaction, request.queues).among(rooms, [request.reserved_task])
    if not rows:
        return None
    return None if _is_kept(transaction, request, rows[0]) else (rooms[rows[0][KIND]], rows[0])
