"""How many tasks of each ready group a claim reads, and what is left of a request when some were taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.stores.rules.claim_plan import ClaimPlan, ReadyTask, server_to_avoid
from synergon.stores.rules.node_capacity import Fit, NodeCapacity, may_reserve, requirements_of

ReadyGroupName = tuple[str, str]
"""Kind and requirements."""


def ready_task(row: Any) -> ReadyTask:
    """A row of the statements that read ready tasks."""
    return ReadyTask(
        row["id"],
        row["priority"],
        row["kind"],
        row["queue"],
        row["requirements"],
        row["target"],
        server_to_avoid(row["server"], row["attempts"]),
        row["may_be_reserved"],
    )


def rest_of(request: ClaimRequest, rows: Sequence[Any]) -> ClaimRequest:
    """What there is still room for when these rows are taken."""
    if not rows:
        return request
    kind_requests = {kind_request.kind: kind_request for kind_request in request.kinds}
    by_kind = Counter(row["kind"] for row in rows)
    free = dict(request.free)
    costs = [requirements_of(kind_requests[row["kind"]], row["requirements"]).cost for row in rows]
    for cost in costs:
        for name, amount in cost.items():
            free[name] = free.get(name, 0) - amount
    return replace(
        request,
        kinds=tuple(
            replace(kind_request, count=kind_request.count - by_kind[kind_request.kind])
            for kind_request in request.kinds
        ),
        limit=request.limit
        - sum(by_kind[kind_request.kind] for kind_request in request.kinds if not kind_request.is_command),
        free=free,
        shares=(*request.shares, *filter(None, costs)),
        held={} if any(row["id"] == request.reserved_task for row in rows) else request.held,
    )


def most_by_weight(request: ClaimRequest, scales: NodeCapacity, kind_request: KindRequest, text: str) -> int:
    """How many of a lane have to be looked at, as far as the node itself goes."""
    most = min(kind_request.count, scales.slots(kind_request) + may_reserve(request))
    requirements = requirements_of(kind_request, text)
    if most <= 0 or scales.fit(kind_request, requirements) is Fit.NEVER:
        return 0
    share = scales.most(kind_request, requirements)
    if not share:  # if nobody may be kept room for, it is not even looked at
        scales.unfit.add(kind_request.kind)
    return min(most, share + may_reserve(request))


def most_to_read(plan: ClaimPlan, kind_request: KindRequest, text: str) -> int:
    """How many of a ready group have to be read; of one that does not fit now, the first."""
    most = plan.shared.most(kind_request)
    return min(most, most_by_weight(plan.request, plan.node, kind_request, text)) if most > 0 else 0


def fits_now(plan: ClaimPlan, kind_request: KindRequest, text: str) -> bool:
    """Whether one of the group could be taken now."""
    return plan.node.fit(kind_request, requirements_of(kind_request, text)) is Fit.NOW
