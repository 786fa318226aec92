"""How many tasks of each ready group a claim reads, and what is left of a request when some were taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.stores.rules.claim_plan import ClaimPlan, ReadyTask, server_to_avoid
from synergon.stores.rules.node_capacity import Fit, NodeCapacity, may_reserve, requirements_of

LaneName = tuple[str, str]
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
        row["may_be_kept"],
    )


def rest_of(request: ClaimRequest, rows: Sequence[Any]) -> ClaimRequest:
    """What there is still room for when these rows are taken."""
    if not rows:
        return request
    rooms = {room.kind: room for room in request.kinds}
    by_kind = Counter(row["kind"] for row in rows)
    free = dict(request.free)
    costs = [requirements_of(rooms[row["kind"]], row["requirements"]).cost for row in rows]
    for cost in costs:
        for name, amount in cost.items():
            free[name] = free.get(name, 0) - amount
    return replace(
        request,
        kinds=tuple(replace(room, count=room.count - by_kind[room.kind]) for room in request.kinds),
        limit=request.limit - sum(by_kind[room.kind] for room in request.kinds if not room.is_command),
        free=free,
        shares=(*request.shares, *filter(None, costs)),
        held={} if any(row["id"] == request.reserved_task for row in rows) else request.held,
    )


def most_by_weight(request: ClaimRequest, scales: NodeCapacity, room: KindRequest, text: str) -> int:
    """How many of a lane have to be looked at, as far as the node itself goes."""
    most = min(room.count, scales.slots(room) + may_reserve(request))
    requirements = requirements_of(room, text)
    if most <= 0 or scales.fit(room, requirements) is Fit.NEVER:
        return 0
    share = scales.most(room, requirements)
    if not share:  # if nobody may be kept room for, it is not even looked at
        scales.unfit.add(room.kind)
    return min(most, share + may_reserve(request))


def most_to_read(plan: ClaimPlan, room: KindRequest, text: str) -> int:
    """How many of a ready group have to be read; of one that does not fit now, the first."""
    most = plan.shared.most(room)
    return min(most, most_by_weight(plan.request, plan.node, room, text)) if most > 0 else 0


def fits_now(plan: ClaimPlan, room: KindRequest, text: str) -> bool:
    """Whether one of the group could be taken now."""
    return plan.node.fit(room, requirements_of(room, text)) is Fit.NOW
