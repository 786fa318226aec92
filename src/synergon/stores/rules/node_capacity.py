"""Decides whether a task fits a node, from the capacity in the claim request, and defines claim order (`claim_order`).
The claims of every store use these rules.

No row stores the capacity of a node, because no other node uses it. `shared_capacity` decides about limits and servers.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from msgspec.structs import replace

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.requirements import (
    KIND_DEFAULT,
    SLOT,
    WHOLE_NODE,
    Requirements,
    bound_cost,
    is_suitable,
    is_suspect_text,
    is_unit,
    parse_requirements,
    with_kind_defaults,
)

ANY_NUMBER: Final = 2**31

ClaimOrder = tuple[bool, bool, int, bool, int, int]
"""The sort key of claim order."""


class Fit(Enum):
    """Whether a task could run on a node, and when."""

    NOW = auto()
    LATER = auto()
    """The task fits when enough running tasks of the node have ended."""
    NO_UNIT = auto()
    """No child process or thread is free, or the bound on its queue or provider is reached. A task needs only one unit
    of each, so no capacity is reserved."""
    NEVER = auto()
    """The node lacks a label or has a forbidden one, its total capacity is too small, or it has refused the task."""


class NodeCapacity:
    """The free capacity of a node while a claim takes tasks one by one."""

    def __init__(self, request: ClaimRequest) -> None:
        self._request = request
        self._free = dict(request.free)
        self._slots = request.limit
        self._held = request.held
        self._shares = list(request.shares)
        """The cost of each running task, and of each task that this claim takes."""
        self.may_reserve: bool = may_reserve(request)
        """Whether the claim may reserve capacity for the next task in claim order that does not fit."""
        self.unfit: set[str] = set()
        """Kinds with a task that does not fit now, but fits when more capacity is free."""

    def fit(self, kind_request: KindRequest, requirements: Requirements, task_id: int | None = None) -> Fit:
        """Whether a task with these requirements fits. Without `task_id`, the task is not the reserved one."""
        request = self._request
        is_hopeless = (kind_request.kind, requirements.refused_by) in request.hopeless
        node_id = None if is_hopeless else request.node_id
        if not is_suitable(requirements, request.labels, request.totals, node_id):
            return Fit.NEVER
        short_of = self.short_of(kind_request, requirements, task_id)
        if not short_of:
            return Fit.NOW
        if task_id is not None:
            self.unfit.add(kind_request.kind)
        return Fit.NO_UNIT if any(map(is_unit, short_of)) else Fit.LATER

    def slots(self, kind_request: KindRequest) -> int:
        """How many more tasks of the kind can get a slot. Commands need none. An urgent kind also counts the slots that
        running tasks would yield to it, unless it is backed off."""
        if kind_request.is_command:
            return ANY_NUMBER
        return self._slots + self._request.yielding.get(SLOT, 0) if kind_request.is_yielded_to else self._slots

    def short_of(self, kind_request: KindRequest, requirements: Requirements, task_id: int | None = None) -> list[str]:
        """The resources that have too little free capacity for the task."""
        is_exempt = self._is_exempt(kind_request, requirements, task_id)
        if self._held.get(WHOLE_NODE) and not (is_exempt or kind_request.is_command):
            return [WHOLE_NODE]  # the node becomes empty for the reserved task
        return [
            name
            for name, amount in requirements.cost.items()
            if amount > self._available(name, kind_request, is_exempt)
        ]

    def is_worth_reserving(self, kind_request: KindRequest, requirements: Requirements, task_id: int) -> bool:
        """Whether the node reserves capacity for this task, which has waited long and does not fit.

        Without a reservation, smaller tasks could take, one after the other, the capacity that this task needs. No
        reservation is needed if the task needs no permit, and every running task that holds one of the missing
        resources frees enough of them when it ends. If this task gets no reservation, no later task in this claim does:
        its reservation would take capacity from this one.
        """
        short = self.short_of(kind_request, requirements, task_id)
        holders = (share for share in self._shares if not share.keys().isdisjoint(short))
        cost = {name: amount for name, amount in requirements.cost.items() if not is_unit(name)}
        is_worth = any(share.get(name, 0) < amount for share in holders for name, amount in cost.items())
        is_worth = is_worth or bool(kind_request.limits) or kind_request.provider is not None or WHOLE_NODE in short
        self.may_reserve = self.may_reserve and is_worth
        return is_worth

    def remaining(self, kind_request: KindRequest) -> dict[str, int]:
        """The amount of each resource that a task of the kind may use, including what is held for a reserved task."""
        return {name: self._available(name, kind_request, is_exempt=True) for name in self._request.totals}

    def most(self, kind_request: KindRequest, requirements: Requirements) -> int:
        """How many tasks with these requirements fit at most, other than the reserved one."""
        if self.fit(kind_request, requirements) is Fit.NEVER:
            return 0
        is_exempt = self._is_exempt(kind_request, requirements, None)
        shares = [
            max(self._available(name, kind_request, is_exempt), 0) // amount
            for name, amount in requirements.cost.items()
        ]
        return min(shares, default=ANY_NUMBER)

    def take(self, kind_request: KindRequest, requirements: Requirements, task_id: int | None = None) -> None:
        """Subtract the cost of a task. If it is the reserved task, nothing is held for it any longer."""
        if WHOLE_NODE in requirements.cost:
            self._slots = 0
        elif not kind_request.is_command:
            self._slots -= 1
            self._free[WHOLE_NODE] = 0
        for name, amount in requirements.cost.items():
            self._free[name] = self._free.get(name, 0) - amount
        if requirements.cost:
            self._shares.append(requirements.cost)
        if task_id is not None and task_id == self._request.reserved_task:
            self._held = {}

    def _is_exempt(self, kind_request: KindRequest, requirements: Requirements, task_id: int | None) -> bool:
        """Whether the task may use capacity that is held for the reserved task."""
        is_brief = kind_request.is_brief and not requirements.is_long
        return kind_request.is_urgent or is_brief or (task_id is not None and task_id == self._request.reserved_task)

    def _available(self, name: str, kind_request: KindRequest, is_exempt: bool) -> int:
        available = self._free.get(name, 0)
        if kind_request.is_yielded_to:
            available += self._request.yielding.get(name, 0)
        return available if is_exempt else available - self._held.get(name, 0)


def may_reserve(request: ClaimRequest) -> bool:
    """Whether the claim may choose a task that does not fit and reserve capacity for it."""
    return request.patience is not None and request.reserved_task is None


def requirements_of(kind_request: KindRequest, text: str, queue: str | None = None) -> Requirements:
    """The requirements of a task: those in its row, completed by those of its kind, and by the bounds on its queue and
    provider. Without a queue, no bound on queues applies."""
    requirements = kind_request.requirements
    if text:
        requirements = with_kind_defaults(
            parse_requirements(text),
            requirements,
            is_isolable=kind_request.is_isolable,
            is_threaded=kind_request.is_threaded,
        )
    if kind_request.bounds:
        cost = requirements.cost | bound_cost(kind_request.bounds, queue)
        return replace(requirements, cost=cost)
    return requirements


def claim_order(
    kind_request: KindRequest,
    priority: int,
    task_id: int,
    text: str = KIND_DEFAULT,
    reserved_task: int | None = None,
    age: int | None = None,
) -> ClaimOrder:
    """The sort key of a task in claim order: commands come first, then urgent kinds, then the reserved task. The others
    are sorted by priority, then suspects last, then by rank in a pipeline (its last kinds first), then by age. `text`
    is the task's requirements. Without `age`, the id is the age. Kinds whose tenants take turns have other ages
    (`fair_ages`)."""
    if kind_request.is_command:
        return False, False, 0, False, 0, task_id
    if (
        task_id == reserved_task
    ):  # else other tasks could take the last slot, and its reserved capacity would be of no use
        return True, not kind_request.is_urgent, -ANY_NUMBER, False, 0, task_id
    return (
        True,
        not kind_request.is_urgent,
        -priority,
        is_suspect_text(text),
        kind_request.rank,
        task_id if age is None else age,
    )
