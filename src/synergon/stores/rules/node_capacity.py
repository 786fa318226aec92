"""Whether a task fits a node: every store decides this in its claim, from the capacity in the claim request.

Only the node itself uses its capacity, so no row holds it. What all nodes share is in `shared_capacity`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.requirements import (
    PROCESS,
    SLOT,
    Requirements,
    is_suitable,
    parse_requirements,
    with_kind_defaults,
)

ANY_NUMBER: Final = 2**31

ClaimOrder = tuple[bool, bool, int, int, int]
"""The sort key of claim order."""


class Fit(Enum):
    """Whether a task could run on a node."""

    NOW = auto()
    LATER = auto()
    """When enough of what runs there has ended."""
    NO_PROCESS = auto()
    """When a child process is free, at the earliest. Each takes one, so nobody is too big for it; until it is free no
    room is kept."""
    NEVER = auto()
    """It lacks a label or has a forbidden one, or the whole node is too small."""


class NodeCapacity:
    """What the node has left, while a claim takes it task by task."""

    def __init__(self, request: ClaimRequest) -> None:
        self._request = request
        self._free = dict(request.free)
        self._slots = request.limit
        self._held = request.held
        self._shares = list(request.shares)
        """What each of those gives back that run there, or are taken now."""
        self.may_reserve = may_reserve(request)
        """Whether room may be kept for a task that comes next in order and does not fit."""
        self.unfit: set[str] = set()
        """Kinds of which a task was weighed that fits later and not now."""

    def fit(self, kind_request: KindRequest, requirements: Requirements, task_id: int | None = None) -> Fit:
        """Whether a task with these requirements fits now; without an id: any task but the reserved one."""
        request = self._request
        if not is_suitable(requirements, request.labels, request.totals):
            return Fit.NEVER
        short_of = self.short_of(kind_request, requirements, task_id)
        if not short_of:
            return Fit.NOW
        if task_id is not None:
            self.unfit.add(kind_request.kind)
        return Fit.NO_PROCESS if PROCESS in short_of else Fit.LATER

    def slots(self, kind_request: KindRequest) -> int:
        """How many more of the kind could be taken, as far as slots go; commands have places of their own."""
        if kind_request.is_command:
            return ANY_NUMBER
        return self._slots + self._request.yielding.get(SLOT, 0) if kind_request.is_yielded_to else self._slots

    def short_of(self, kind_request: KindRequest, requirements: Requirements, task_id: int | None = None) -> list[str]:
        """The resources of which too little is left for it now."""
        is_exempt = self._is_exempt(kind_request, requirements, task_id)
        return [
            name
            for name, amount in requirements.cost.items()
            if amount > self._available(name, kind_request, is_exempt)
        ]

    def is_worth_reserving(self, kind_request: KindRequest, requirements: Requirements, task_id: int) -> bool:
        """Whether room has to be kept for this task, which has waited for long and does not fit: others may get, bit by
        bit, what it waits for. If everybody who has some of that has all that it needs, it starts when the first of
        them ends, unless it wants a place in a limit or on a server as well, which then others may have. If room is
        not kept for it, it is for none behind it: that would be kept from this one, too."""
        short = self.short_of(kind_request, requirements, task_id)
        holders = (share for share in self._shares if not share.keys().isdisjoint(short))
        is_worth = any(share.get(name, 0) < amount for share in holders for name, amount in requirements.cost.items())
        is_worth = is_worth or bool(kind_request.limits) or kind_request.provider is not None
        self.may_reserve = self.may_reserve and is_worth
        return is_worth

    def remaining(self, kind_request: KindRequest) -> dict[str, int]:
        """What a task of the kind finds of each resource, if nothing is held from it."""
        return {name: self._available(name, kind_request, is_exempt=True) for name in self._request.totals}

    def most(self, kind_request: KindRequest, requirements: Requirements) -> int:
        """More than this cannot be taken of such tasks; the one that room is kept for not counted."""
        if self.fit(kind_request, requirements) is Fit.NEVER:
            return 0
        is_exempt = self._is_exempt(kind_request, requirements, None)
        shares = [
            max(self._available(name, kind_request, is_exempt), 0) // amount
            for name, amount in requirements.cost.items()
        ]
        return min(shares, default=ANY_NUMBER)

    def take(self, kind_request: KindRequest, requirements: Requirements, task_id: int | None = None) -> None:
        """It is taken. What was held for it is its own now, and held from nobody any more."""
        self._slots -= not kind_request.is_command
        for name, amount in requirements.cost.items():
            self._free[name] = self._free.get(name, 0) - amount
        if requirements.cost:
            self._shares.append(requirements.cost)
        if task_id is not None and task_id == self._request.reserved_task:
            self._held = {}

    def _is_exempt(self, kind_request: KindRequest, requirements: Requirements, task_id: int | None) -> bool:
        """Whether it may use what is held for the task that room is kept for."""
        is_brief = kind_request.is_brief and not requirements.is_long
        return kind_request.is_urgent or is_brief or (task_id is not None and task_id == self._request.reserved_task)

    def _available(self, name: str, kind_request: KindRequest, is_exempt: bool) -> int:
        available = self._free.get(name, 0)
        if kind_request.is_yielded_to:
            available += self._request.yielding.get(name, 0)
        return available if is_exempt else available - self._held.get(name, 0)


def may_reserve(request: ClaimRequest) -> bool:
    """Whether the node may choose a task that does not fit, to keep room for it."""
    return request.patience is not None and request.reserved_task is None


def requirements_of(kind_request: KindRequest, text: str) -> Requirements:
    """What a row's text means, where its kind is known."""
    return (
        with_kind_defaults(parse_requirements(text), kind_request.requirements) if text else kind_request.requirements
    )


def claim_order(kind_request: KindRequest, priority: int, task_id: int, reserved_task: int | None = None) -> ClaimOrder:
    """The order in which tasks are taken: commands, urgent kinds, the task that room is kept for, priority, the end of
    a pipeline before its beginning, age."""
    if kind_request.is_command:
        return False, False, 0, 0, task_id
    if task_id == reserved_task:  # else others would have the last slot, and what is held would be held in vain
        return True, not kind_request.is_urgent, -ANY_NUMBER, 0, task_id
    return True, not kind_request.is_urgent, -priority, kind_request.rank, task_id
