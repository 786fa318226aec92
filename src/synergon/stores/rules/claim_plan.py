"""The claim planner: decides which ready tasks a node claims, and for which one it reserves capacity.

Pure: it reads no store and awaits nothing. Every store plans its claims with it, and `explain` plans the next claim of
a node with it, so an explanation comes from the code that decides.

Tasks are offered in claim order. The planner takes a task if the kind request allows one more, the node has a slot and
the required resources (`NodeCapacity`), and every limit and server that it needs has a permit (`SharedCapacity`). After
a task that does not fit the node, no task of its ready group is taken.
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
"""Kind, queue and requirements: tasks that differ only in priority and age."""


class ReadyTask(NamedTuple):
    """The columns of a ready task that the planner needs."""

    id: int
    priority: int
    kind: str
    queue: str = "default"
    requirements: str = KIND_DEFAULT
    target: str | None = None
    """The only server that may run the task; None if any server of its provider may."""
    avoid: str | None = None
    """The server of the previous attempt. Another one is preferred."""
    may_reserve: bool = False
    """The task has been due for the request's patience, and no other live node has reserved capacity for it."""

    @property
    def group(self) -> ReadyGroupName:
        """The ready group of the task."""
        return self.kind, self.queue, self.requirements


def server_to_avoid(server: str | None, attempts: int) -> str | None:
    """The server of the previous attempt, which a retry avoids."""
    return server if attempts > 0 else None


class Taken(NamedTuple):
    """A task that the plan takes, with its permits."""

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
        """The task for which this claim reserves capacity. The claim then takes no further task."""
        self.held_for: ReadyTask | None = None
        """The task for which the node had reserved capacity before this claim, if it is ready."""
        self._kinds = {kind_request.kind: kind_request for kind_request in request.kinds}
        self._remaining = Counter({kind_request.kind: kind_request.count for kind_request in request.kinds})
        self._closed: set[ReadyGroupName] = set()
        """Groups whose first task did not fit the node: none behind it does."""

    @property
    def unfit(self) -> frozenset[str]:
        """Kinds with a task that fits the node later, but not now."""
        return frozenset(self.node.unfit)

    def order(self, task: ReadyTask) -> ClaimOrder:
        """The sort key of a task in claim order."""
        return claim_order(self._kinds[task.kind], task.priority, task.id, self.request.reserved_task)

    def hold(self, task: ReadyTask) -> None:
        """Hold permits for the reserved task. Called before the first offer."""
        self.held_for = task
        self.shared.hold(self._kinds[task.kind], task)

    def leaves_permits(self) -> bool:
        """Whether the reserved task, if it was not taken, still has its permits. Called after the last offer."""
        task = self.held_for
        return task is not None and self.shared.take(self._kinds[task.kind], task) is not None

    def offer(self, task: ReadyTask) -> Grant | None:
        """Take the task (returned with its permits), reserve capacity for it, or pass it over. Tasks are offered in
        claim order."""
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
        """Whether this task, and tasks behind it in its group, may be taken or reserved for.

        A task that does not fit may be reserved even if no slot is free: slots become free one by one, and without a
        reservation other tasks would take the resources that it needs.
        """
        if self.reserved is not None or self._remaining[task.kind] <= 0:
            return False
        if self.node.slots(self._kinds[task.kind]) <= 0 and not self.node.may_reserve:
            return False
        return task.group not in self._closed or task.id == self.request.reserved_task

    def _is_worth_reserving(self, kind_request: KindRequest, requirements: Requirements, task: ReadyTask) -> bool:
        """Whether to reserve capacity for the task: not if it could not start for lack of a permit."""
        if not (self.node.may_reserve and task.may_reserve and self.shared.has_permits(kind_request, task)):
            return False
        return self.node.is_worth_reserving(kind_request, requirements, task.id)


def choose(request: ClaimRequest, candidates: Iterable[ReadyTask], shared: SharedCapacity) -> ClaimPlan:
    """Plan a claim of these candidates, given in any order."""
    plan = ClaimPlan(request, shared)
    for task in sorted(candidates, key=plan.order):
        plan.offer(task)
    return plan
