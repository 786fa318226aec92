"""Reservations: capacity that a node holds for a task that does not fit yet.

The row of the task names the node that has reserved capacity for it, and until when. Only one node at a time can
reserve capacity for a task. Each claim of the node renews the reservation, or drops it if a missing permit would keep
the task from starting.
"""

from __future__ import annotations

from synergon.model.claims import ClaimRequest, ReservedTask
from synergon.stores.rules.claim_plan import ClaimPlan, ReadyTask
from synergon.stores.rules.node_capacity import requirements_of
from synergon.stores.session import Session


async def reserve(session: Session, request: ClaimRequest, task: ReadyTask) -> ReservedTask | None:
    """Reserve capacity of the node for a task, or renew the reservation. None if the task has changed, or another node
    has reserved capacity for it."""
    if not await session.ready.reserve(request, task):
        return None
    kind = next(kind for kind in request.kinds if kind.kind == task.kind)
    return ReservedTask(id=task.id, kind=task.kind, requirements=requirements_of(kind, task.requirements, task.queue))


async def renew(session: Session, request: ClaimRequest, plan: ClaimPlan) -> ReservedTask | None:
    """Renew the reservation, or release it. Called after a claim that did not take the reserved task."""
    assert request.reserved_task is not None, "only a request with a reservation renews it"
    reserved = await reserve(session, request, plan.held_for) if plan.held_for and plan.leaves_permits() else None
    if reserved is None:
        await session.ready.release_reservation(request.reserved_task, request.node_id)
    return reserved
