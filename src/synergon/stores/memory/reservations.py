"""Room that a node keeps for a task that does not fit yet."""

from __future__ import annotations

from synergon.model.claims import ClaimRequest, KindRequest, ReservedTask
from synergon.model.lifecycle import State
from synergon.stores.memory.row import Row
from synergon.stores.memory.tables import Tables
from synergon.stores.rules.claim_plan import ReadyTask, server_to_avoid
from synergon.stores.rules.node_capacity import requirements_of
from synergon.stores.rules.shared_capacity import SharedCapacity


def may_be_reserved(tables: Tables, request: ClaimRequest, row: Row, now: int) -> bool:
    """Whether the node may choose this task, which it could run and has no room for."""
    return (
        request.patience is not None
        and now - row.run_at >= request.patience
        and not _is_another_s(tables, request, row, now)
    )


def reserve(row: Row, request: ClaimRequest, now: int) -> ReservedTask:
    """Reserve capacity for the task, from now on or further."""
    row.reserved_by = request.node_id
    row.reserved_until = now + request.reserve_microseconds
    kind_request = next(kind_request for kind_request in request.kinds if kind_request.kind == row.task.kind)
    requirements = requirements_of(kind_request, row.task.requirements)
    return ReservedTask(id=row.id, kind=row.task.kind, requirements=requirements)


def hold_permits(tables: Tables, request: ClaimRequest, shared: SharedCapacity, now: int) -> None:
    """Others leave to the task that room is kept for what it needs of that which all nodes share."""
    row = tables.rows.get(request.reserved_task or 0)
    kind_request = None if row is None else _kind_request_of(request, row)
    if (
        row is not None
        and kind_request is not None
        and row.state is State.READY
        and _may_renew(tables, request, row, now)
    ):
        shared.hold(kind_request, ready_task(row))


def renew_reservation(tables: Tables, request: ClaimRequest, shared: SharedCapacity, now: int) -> ReservedTask | None:
    """The node keeps room for the same task as before, or lets go of it if that could not start anyway."""
    row = tables.rows.get(request.reserved_task or 0)
    if row is None or row.state is not State.READY:
        return None
    kind_request = _kind_request_of(request, row)
    if (
        kind_request is not None
        and _may_renew(tables, request, row, now)
        and shared.take(kind_request, ready_task(row)) is not None
    ):
        return reserve(row, request, now)
    if row.reserved_by == request.node_id:
        row.reserved_by = None
    return None


def _kind_request_of(request: ClaimRequest, row: Row) -> KindRequest | None:
    return next((kind_request for kind_request in request.kinds if kind_request.kind == row.task.kind), None)


def _may_renew(tables: Tables, request: ClaimRequest, row: Row, now: int) -> bool:
    is_asked_for = request.queues is None or row.task.queue in request.queues
    is_over = row.expires_at is not None and row.expires_at <= now
    return (
        request.reserve_microseconds > 0
        and is_asked_for
        and not is_over
        and tables.queues[row.task.queue] is None
        and not _is_another_s(tables, request, row, now)
    )


def ready_task(row: Row, *, may_reserve: bool = False) -> ReadyTask:
    """The row, as the planner needs it."""
    task, avoid = row.task, server_to_avoid(row.server, row.attempts)
    return ReadyTask(row.id, row.priority, task.kind, task.queue, task.requirements, task.target, avoid, may_reserve)


def _is_another_s(tables: Tables, request: ClaimRequest, row: Row, now: int) -> bool:
    """Whether another node keeps room for it that is alive and not cordoned."""
    return (
        row.reserved_by is not None
        and row.reserved_by != request.node_id
        and row.reserved_until > now
        and tables.is_leased(row.reserved_by, now)
        and tables.nodes[row.reserved_by].cordoned_at is None
    )
