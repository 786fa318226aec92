"""The claim planner: decides which ready tasks a node claims, and for which one it reserves capacity.

The planner reads no store and awaits nothing. Every store plans its claims with it. `explain` plans the next claim of a
node with it, so an explanation comes from the code that decides.

Tasks are offered in claim order. The planner takes a task if the kind request allows one more, the node has a slot and
the required resources (`NodeCapacity`), and every limit and server that the task needs has a permit (`SharedCapacity`).
After a task that does not fit the node, no task of its ready group is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.requirements import KIND_DEFAULT, Requirements, is_suspect_text
from synergon.stores.rules.node_capacity import ClaimOrder, Fit, NodeCapacity, claim_order, requirements_of
from synergon.stores.rules.shared_capacity import Grant, SharedCapacity

ReadyGroupName = tuple[str, str, str]
"""Kind, queue and requirements. The tasks of a ready group differ only in priority, turn and age."""


ReadyClass = tuple[str, str, str, int]
"""A ready group and a priority. The tasks of a class differ only in turn and age."""

NOTHING_READ: Final[Mapping[ReadyClass, Sequence[int]]] = MappingProxyType({})


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
    fair_tag: int = 0
    """The turn of the task, if the tenants of its kind take turns."""
    units: int = 1
    """How many units a start of the task charges to the rates of its limits."""
    has_blamed: bool = False
    """Whether the task has blamed a server. It then waits for a server other than `avoid`, if one is in service."""

    @property
    def group(self) -> ReadyGroupName:
        """The ready group of the task."""
        return self.kind, self.queue, self.requirements

    @property
    def ready_class(self) -> ReadyClass:
        """The ready group and the priority of the task."""
        return *self.group, self.priority


def server_to_avoid(server: str | None, attempts: int, server_failures: int) -> str | None:
    """The server of the previous attempt, which the next attempt avoids. None if no attempt of the task has failed or
    blamed its server."""
    return server if attempts > 0 or server_failures > 0 else None


class Taken(NamedTuple):
    """A task that the plan takes, with the permits that it gets."""

    task: ReadyTask
    grant: Grant


class ClaimPlan:
    """Plans one claim, task by task."""

    def __init__(self, request: ClaimRequest, shared: SharedCapacity) -> None:
        self.request = request
        self.shared = shared
        self.node: Final = NodeCapacity(request)
        self.taken: list[Taken] = []
        self.reserved: ReadyTask | None = None
        """The task for which this claim newly reserves capacity. The claim then takes no further task."""
        self.held_for: ReadyTask | None = None
        """The task for which the node had reserved capacity before this claim. None if there is none, or if it is not
        ready."""
        self._kinds = {kind_request.kind: kind_request for kind_request in request.kinds}
        self._remaining = Counter({kind_request.kind: kind_request.count for kind_request in request.kinds})
        self._closed: set[ReadyGroupName] = set()
        """Ready groups with a task that did not fit the node. Later tasks of such a group do not fit either."""
        self._ages: dict[int, int] = {}
        """The ages of candidates whose tenants take turns, by id."""

    @property
    def unfit(self) -> frozenset[str]:
        """Kinds with a task that does not fit the node now, but fits when more capacity is free."""
        return frozenset(self.node.unfit)

    def in_order(
        self, candidates: Collection[ReadyTask], oldest: Mapping[ReadyClass, Sequence[int]] = NOTHING_READ
    ) -> list[ReadyTask]:
        """The candidates in claim order. `oldest` are the smallest ids of the classes of candidates with tags."""
        fair = [task for task in candidates if task.fair_tag and task.id != self.request.reserved_task]
        self._ages = fair_ages(fair, oldest)
        return sorted(candidates, key=self.order)

    def order(self, task: ReadyTask) -> ClaimOrder:
        """The sort key of one of the candidates in claim order."""
        kind_request, reserved_task, age = self._kinds[task.kind], self.request.reserved_task, self._ages.get(task.id)
        return claim_order(kind_request, task.priority, task.id, task.requirements, reserved_task, age)

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
        """Take the task, reserve capacity for it, or pass it over. Returns the permits of a taken task, otherwise None.
        Tasks are offered in claim order."""
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
            # If no server is free for this task, none is for the others of its kind, unless the task has blamed a
            # server that is free for them.
            if task.target is None and not task.has_blamed:
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


def fair_ages(tasks: Iterable[ReadyTask], oldest: Mapping[ReadyClass, Sequence[int]] = NOTHING_READ) -> dict[int, int]:
    """The ages of tasks with tags, by id. Within a kind and priority, the task with the smallest tag gets the smallest
    id of all ready tasks as its age, the next task the next id, and so on. So a kind is as old as its oldest tasks, and
    tags decide which of its tasks start. `oldest` are the smallest ids of each class, also of tasks that were not
    read."""
    kinds: dict[tuple[str, int, bool], list[ReadyTask]] = {}
    for task in tasks:
        kinds.setdefault((task.kind, task.priority, is_suspect_text(task.requirements)), []).append(task)
    ages: dict[int, int] = {}
    for members in kinds.values():
        classes = {task.ready_class for task in members}
        ids = {task.id for task in members}.union(*(oldest.get(name, ()) for name in classes))
        by_turn = sorted(members, key=lambda task: (task.fair_tag, task.id))
        ages.update(zip((task.id for task in by_turn), sorted(ids), strict=False))
    return ages


def choose(request: ClaimRequest, candidates: Iterable[ReadyTask], shared: SharedCapacity) -> ClaimPlan:
    """Plan a claim from these candidates, given in any order."""
    plan = ClaimPlan(request, shared)
    for task in plan.in_order(list(candidates)):
        plan.offer(task)
    return plan
