"""The claim planner: which ready tasks a node claims, and for which one it reserves capacity.

Pure: it reads no store and awaits nothing. Every store plans its claims with it, and `explain` plans the next claim of
a node with it, so an explanation comes from the code that decides.

Tasks are offered in claim order. A task is taken if its kind may have one more, the node has a slot and its
requirements (`NodeCapacity`), and every limit and server that it needs has a permit (`SharedCapacity`), all of it
together. Behind a task that does not fit the node, no task of the same ready group is taken.
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
    """A ready task, as far as the planner needs it."""

    id: int
    priority: int
    kind: str
    queue: str = "default"
    requirements: str = KIND_DEFAULT
    target: str | None = None
    """Only this server will do."""
    avoid: str | None = None
    """The server of the attempt before, if there is another one."""
    may_reserve: bool = False
    """It has been due for long enough, and no other live node has reserved capacity for it."""

    @property
    def group(self) -> ReadyGroupName:
        """Its ready group."""
        return self.kind, self.queue, self.requirements


def server_to_avoid(server: str | None, attempts: int) -> str | None:
    """A retry avoids the server of the attempt before."""
    return server if attempts > 0 else None


class Taken(NamedTuple):
    """A task that is claimed, and the permits that it holds."""

    task: ReadyTask
    grant: Grant


class ClaimPlan:
    """One claim, decided task by task."""

    def __init__(self, request: ClaimRequest, shared: SharedCapacity) -> None:
        self.request = request
        self.shared = shared
        self.node = NodeCapacity(request)
        self.taken: list[Taken] = []
        self.reserved: ReadyTask | None = None
        """The node reserves capacity for this task from now on, and the claim ends."""
        self.held_for: ReadyTask | None = None
        """The task that the node has reserved capacity for before, if it is ready."""
        self._kinds = {kind_request.kind: kind_request for kind_request in request.kinds}
        self._remaining = Counter({kind_request.kind: kind_request.count for kind_request in request.kinds})
        self._closed: set[ReadyGroupName] = set()
        """Groups whose first task did not fit the node: none behind it does."""

    @property
    def unfit(self) -> frozenset[str]:
        """Kinds of which something fits the node later and not now."""
        return frozenset(self.node.unfit)

    def order(self, task: ReadyTask) -> ClaimOrder:
        """The sort key of claim order."""
        return claim_order(self._kinds[task.kind], task.priority, task.id, self.request.reserved_task)

    def hold(self, task: ReadyTask) -> None:
        """Leave to the reserved task the permits that it needs. Called before the first offer."""
        self.held_for = task
        self.shared.hold(self._kinds[task.kind], task)

    def leaves_permits(self) -> bool:
        """Whether the reserved task, which was not taken, has its permits. Called after the last offer."""
        task = self.held_for
        return task is not None and self.shared.take(self._kinds[task.kind], task) is not None

    def offer(self, task: ReadyTask) -> Grant | None:
        """Take the task, or reserve capacity for it, or pass it over (None). Tasks are offered in claim order."""
        kind_request = self._kinds[task.kind]
        if not self._may_take_more(task):
            return None
        requirements = requirements_of(kind_request, task.requirements)
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
            if task.target is None:  # what a task without a target does not get, no other task of its kind gets
                self._remaining[task.kind] = 0
            return None
        self.node.take(kind_request, requirements, task.id)
        self._remaining[task.kind] -= 1
        self.taken.append(Taken(task, grant))
        return grant

    def _may_take_more(self, task: ReadyTask) -> bool:
        """Whether this task, and tasks behind it in its group, may be taken or reserved for.

        A task that does not fit may have capacity reserved although all slots are taken: slots come back one by one,
        and what it waits for comes back only if it is reserved.
        """
        if self.reserved is not None or self._remaining[task.kind] <= 0:
            return False
        if self.node.slots(self._kinds[task.kind]) <= 0 and not self.node.may_reserve:
            return False
        return task.group not in self._closed or task.id == self.request.reserved_task

    def _is_worth_reserving(self, kind_request: KindRequest, requirements: Requirements, task: ReadyTask) -> bool:
        """Not if the task could not start anyway, for want of a permit."""
        if not (self.node.may_reserve and task.may_reserve and self.shared.has_permits(kind_request, task)):
            return False
        return self.node.is_worth_reserving(kind_request, requirements, task.id)


def choose(request: ClaimRequest, candidates: Iterable[ReadyTask], shared: SharedCapacity) -> ClaimPlan:
    """Plan a claim among these candidates, given in any order."""
    plan = ClaimPlan(request, shared)
    for task in sorted(candidates, key=plan.order):
        plan.offer(task)
    return plan
