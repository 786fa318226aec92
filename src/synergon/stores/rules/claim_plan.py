"""The claim planner: decides which ready tasks a node claims, and for which one it reserves capacity.

The planner reads no store and awaits nothing. Every store plans its claims with it. `explain` plans the next claim of a
node with it, so an explanation comes from the code that decides.

Tasks are offered in claim order. The planner takes a task if the kind request allows one more, the node has a slot and
the required resources (`NodeCapacity`), and every limit and server that the task needs has a permit (`SharedCapacity`).
After a task that does not fit the node, no task of its ready group is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.requirements import KIND_DEFAULT, Requirements
from synergon.stores.rules.node_capacity import ClaimOrder, Fit, NodeCapacity, claim_order, requirements_of
from synergon.stores.rules.shared_capacity import Grant, SharedCapacity

ReadyGroupName = tuple[str, str, str]
"""Kind, queue and requirements. The tasks of a ready group differ only in priority and age."""


class ReadyTask(NamedTuple):
    """The columns of a ready task that the planner needs."""

    id: int
    priority: int
    kind: str
    queue: str = "default"
    requirements: str = KIND_DEFAULT
    target: str | None = None
    """The only server that may run the task. None if any server of its provider may."""
    avoid: str | None = None
    """The server of the previous attempt. The planner prefers another one."""
    may_reserve: bool = False
    """Whether the task has been due for the request's patience, and no other live node has reserved capacity for it."""

    @property
    def group(self) -> ReadyGroupName:
        """The ready group of the task."""
        return self.kind, self.queue, self.requirements


def server_to_avoid(server: str | None, attempts: int) -> str | None:
    """The server of the previous attempt, which a retry avoids. None before the first attempt."""
    return server if attempts > 0 else None


class Taken(NamedTuple):
    """A task that the plan takes, with the permits that it gets."""

    task: ReadyTask
    grant: Grant


class ClaimPlan:
    """Plans one claim, task by task."""

    def __init__(self, request: ClaimRequest, shared: SharedCapacity) -> None:
        self.request = request
        self.shared = shared
        self.node = NodeCapacity(request)
        self.taken: list[Taken] = []
        self.reserved: ReadyTask | None = None
        """The task for which this claim newly reserves capacity. The claim then takes no further task."""
        self.held_for: ReadyTask | None = None
        """The task for which the node had reserved capacity before this claim. None if there is none, or if it is not
        ready."""
        self._kinds = {kind_request.kind: kind_request for kind_request in request.kinds}
        self._remaining = Counter({kind_request.kind: kind_request.count for kind_request in request.kinds})
        self._closed: set[ReadyGroupName] = set()
        """Groups of which a task did not fit the node. Later tasks of such a group do not fit either."""

    @property
    def unfit(self) -> frozenset[str]:
        """Kinds with a task that does not fit the node now, but fits when more capacity is free."""
        return frozenset(self.node.unfit)

    def order(self, task: ReadyTask) -> ClaimOrder:
        """The sort key of a task in claim order."""
        kind_request, reserved_task = self._kinds[task.kind], self.request.reserved_task
        return claim_order(kind_request, task.priority, task.id, task.requirements, reserved_task)

    def hold(self, task: ReadyTask) -> None:
        """Hold permits for the reserved task. Called before the first task is offered."""
        self.held_for = task
        self.shared.hold(self._kinds[task.kind], task)

    def leaves_permits(self) -> bool:
        """Whether the reserved task, which was not taken, could still get its permits. Called after the last task was
        offered."""
        task = self.held_for
        return task is not None and self.shared.take(self._kinds[task.kind], task) is not None

    def offer(self, task: ReadyTask) -> Grant | None:
        """Take the task and return its permits, or reserve capacity for it, or pass it over (both None). Tasks are
        offered in claim order."""
        kind_request = self._kinds[task.kind]
        if not self._may_take_more(task):
            return None
        requirements = requirements_of(kind_request, task.requirements, task.queue)
        fit = self.node.fit(kind_request, requirements, task.id)
        if fit is not Fit.NOW:
            if task.id != self.request.reserved_task:
                self._closed.add(task.group)
            if fit is Fit.LATER and self._is_worth_reserving(kind_request, requirements, task):
                self.reserved = task
            return None
        if self.node.slots(kind_request) <= 0:
            return None
        grant = self.shared.take(kind_request, task)
        if grant is None:
            if task.target is None:  # if no server is free for this task, none is for the others of its kind
                self._remaining[task.kind] = 0
            return None
        self.node.take(kind_request, requirements, task.id)
        self._remaining[task.kind] -= 1
        self.taken.append(Taken(task, grant))
        return grant

    def _may_take_more(self, task: ReadyTask) -> bool:
        """Whether the plan may take the task, or reserve capacity for it.

        Capacity may be reserved for a task that does not fit even if no slot is free: slots become free one by one, and
        without a reservation other tasks would take the resources that the task needs.
        """
        if self.reserved is not None or self._remaining[task.kind] <= 0:
            return False
        if self.node.slots(self._kinds[task.kind]) <= 0 and not self.node.may_reserve:
            return False
        return task.group not in self._closed or task.id == self.request.reserved_task

    def _is_worth_reserving(self, kind_request: KindRequest, requirements: Requirements, task: ReadyTask) -> bool:
        """Whether to reserve capacity for the task. Not if a missing permit would keep the task from starting."""
        if not (self.node.may_reserve and task.may_reserve and self.shared.has_permits(kind_request, task)):
            return False
        return self.node.is_worth_reserving(kind_request, requirements, task.id)


def choose(request: ClaimRequest, candidates: Iterable[ReadyTask], shared: SharedCapacity) -> ClaimPlan:
    """Plan a claim from these candidates, given in any order."""
    plan = ClaimPlan(request, shared)
    for task in sorted(candidates, key=plan.order):
        plan.offer(task)
    return plan
