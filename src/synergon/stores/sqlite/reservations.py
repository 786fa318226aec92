"""Room that is kept for a task which has waited long: its row says which node does, and until when."""

from __future__ import annotations

from typing import Any

from synergon.model.claims import ClaimRequest, KindRequest, ReservedTask
from synergon.stores.rules.claim_plan import ReadyTask
from synergon.stores.rules.node_capacity import may_reserve, requirements_of
from synergon.stores.rules.shared_capacity import SharedCapacity
from synergon.stores.sqlite.nodes import lease_and_cordon
from synergon.stores.sqlite.ready_groups import KIND, RESERVED_BY, RESERVED_UNTIL, RUN_AT, ReadyGroups, ready_task
from synergon.stores.sqlite.transaction import Transaction


def may_be_reserved(transaction: Transaction, request: ClaimRequest, row: tuple[Any, ...]) -> bool:
    """Whether the node may reserve capacity for a ready task: it has waited for long enough, and no other node has."""
    if not may_reserve(request) or request.patience is None:
        return False
    return row[RUN_AT] <= transaction.now - request.patience and not _is_reserved(transaction, request, row)


def _is_reserved(transaction: Transaction, request: ClaimRequest, row: tuple[Any, ...]) -> bool:
    """Whether a node other than this one, which is alive and not cordoned, has reserved capacity for it."""
    reserved_by = row[RESERVED_BY]
    if reserved_by is None or reserved_by == request.node_id or row[RESERVED_UNTIL] <= transaction.now:
        return False
    lease_remaining, is_cordoned = lease_and_cordon(transaction, reserved_by)
    return lease_remaining > 0 and not is_cordoned


def reserve(transaction: Transaction, request: ClaimRequest, task: ReadyTask) -> ReservedTask:
    """Reserve capacity for the task from now on."""
    kind_request = next(kind_request for kind_request in request.kinds if kind_request.kind == task.kind)
    transaction.run("reserve", request.node_id, transaction.now + request.reserve_microseconds, task.id)
    return ReservedTask(id=task.id, kind=task.kind, requirements=requirements_of(kind_request, task.requirements))


def hold_permits(transaction: Transaction, request: ClaimRequest, allotment: SharedCapacity) -> None:
    """Others leave to the task that the node has named what it needs of that which all nodes share."""
    found = _found(transaction, request)
    if found is not None and any(
        kind_request.limits or kind_request.provider is not None for kind_request in request.kinds
    ):
        allotment.hold(found[0], ready_task(found[1]))


def renew(transaction: Transaction, request: ClaimRequest, allotment: SharedCapacity) -> ReservedTask | None:
    """Go on keeping room for the task that the node has named, or let go of it if it could not start anyway."""
    if request.reserved_task is None:
        return None
    found = _found(transaction, request)
    if found is None or allotment.take(found[0], ready_task(found[1])) is None:
        transaction.run("let_go", request.reserved_task, request.node_id)
        return None
    return reserve(transaction, request, ready_task(found[1]))


def _found(transaction: Transaction, request: ClaimRequest) -> tuple[KindRequest, tuple[Any, ...]] | None:
    """The task that the node has named, if it is ready and the node may keep room for it."""
    if request.reserved_task is None or request.reserve_microseconds <= 0:
        return None
    kind_requests = {kind_request.kind: kind_request for kind_request in request.kinds}
    rows = ReadyGroups(transaction, request.queues).among(kind_requests, [request.reserved_task])
    if not rows:
        return None
    return None if _is_reserved(transaction, request, rows[0]) else (kind_requests[rows[0][KIND]], rows[0])
