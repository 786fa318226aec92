"""Who is given what, decided by looking at every task in order; the model's own word for `Scales` and the lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from synergon.model.claims import CandidateQuery, ClaimRequest, KindRequest
from synergon.model.requirements import PROCESS, SLOT, THREAD, WHOLE_NODE, Requirements
from synergon.stores.rules.node_capacity import requirements_of

if TYPE_CHECKING:
    from tests.stores.model import ModelTask

Position = tuple[bool, int, bool, int, int]


@dataclass
class ModelClaims:
    """What a node is told."""

    taken: list[ModelTask] = field(default_factory=list)
    reserved: int | None = None
    is_cordoned: bool = False


def position(kind_request: KindRequest, task: ModelTask) -> Position:
    """Smaller goes first."""
    return not kind_request.is_urgent, -task.priority, task.is_suspect, kind_request.rank, task.id


def suits(requirements: Requirements, labels: frozenset[str], totals: Mapping[str, int], node_id: str | None) -> bool:
    """Whether such a node could ever run it."""
    if node_id in requirements.refused_by:
        return False
    has_labels = all(label in labels for label in requirements.needs) and not any(
        label in labels for label in requirements.forbids
    )
    return has_labels and all(totals.get(name, 0) >= amount for name, amount in requirements.cost.items())


def looked_at(look: CandidateQuery, tasks: Iterable[ModelTask]) -> list[int]:
    """What a node sees that looks at these, which it might claim."""
    found = sorted(
        (
            task
            for task in tasks
            if suits(requirements_of(look.kind_request, task.requirements), look.labels, look.totals, look.node_id)
        ),
        key=lambda task: (-task.priority, task.id),
    )
    after = None if look.after is None else (-look.after[0], look.after[2])
    behind = [task.id for task in found if after is None or (-task.priority, task.id) > after]
    return behind[: look.limit]


class ModelClaim:
    """One claim."""

    def __init__(
        self,
        request: ClaimRequest,
        positions: Callable[[str], float],
        may_keep: Callable[[int], bool],
        left_to_kept: frozenset[str],
        live: set[str],
    ) -> None:
        self._live = live
        self.request = request
        self.kind_requests = {kind_request.kind: kind_request for kind_request in request.kinds}
        self.claims = ModelClaims()
        self._places = positions
        self._may_keep = may_keep
        self._left = {kind_request.kind: kind_request.count for kind_request in request.kinds}
        self._slots = request.limit
        self._free = dict(request.free)
        self._held = dict(request.held)
        self._shares = list(request.shares)
        self._is_patient = request.patience == 0 and request.reserved_task is None
        self._ready_groups: set[tuple[str, str, str]] = set()
        """Those of which something did not fit."""
        self._left_to_kept = left_to_kept
        """In each of these limits one place is the kept task's, unless something urgent takes one of them."""

    def choose(self, tasks: Iterable[ModelTask], start: Callable[[ModelTask, frozenset[str]], None]) -> None:
        """Of tasks that may be claimed, in order."""
        asked = [task for task in tasks if task.task.kind in self.kind_requests]
        for task in sorted(asked, key=self._position):
            if self.claims.reserved is None and self._takes(task):
                self.claims.taken.append(task)
                start(task, frozenset(self.kind_requests[task.task.kind].limits))
                if task.id == self.request.reserved_task or any(self._places(name) < 1 for name in self._left_to_kept):
                    self._left_to_kept = frozenset()

    def _position(self, task: ModelTask) -> tuple[bool, bool, Position]:
        """The one that capacity is reserved for goes first, but for what is urgent."""
        kind_request = self.kind_requests[task.task.kind]
        return not kind_request.is_urgent, task.id != self.request.reserved_task, position(kind_request, task)

    def _takes(self, task: ModelTask) -> bool:
        kind_request = self.kind_requests[task.task.kind]
        requirements = requirements_of(kind_request, task.requirements)
        if self._left[kind_request.kind] <= 0 or (kind_request.only is not None and task.id not in kind_request.only):
            return False
        is_hopeless = self._live <= set(requirements.refused_by)
        node_id = None if is_hopeless else self.request.node_id
        if not suits(requirements, self.request.labels, self.request.totals, node_id) or not self._has_places(
            kind_request, task.id
        ):
            return False
        lacking = {
            name for name, amount in requirements.cost.items() if amount > self._available(name, kind_request, task.id)
        }
        if self._held.get(WHOLE_NODE) and not self._is_exempt(kind_request, task.id):
            lacking = {WHOLE_NODE}
        if lacking:
            self._pass_over(task, requirements, lacking)
            return False
        if (
            self._slots
            + (self.request.yielding.get(SLOT, 0) if kind_request.is_urgent and not kind_request.is_backed_off else 0)
            <= 0
        ):
            return False
        self._left[kind_request.kind] -= 1
        self._slots -= 1
        if WHOLE_NODE in requirements.cost:
            self._slots = 0
        else:
            self._free[WHOLE_NODE] = 0
        for name, amount in requirements.cost.items():
            self._free[name] = self._free.get(name, 0) - amount
        self._shares.append(requirements.cost)
        if task.id == self.request.reserved_task:
            self._held = {}
        return True

    def _has_places(self, kind_request: KindRequest, task_id: int) -> bool:
        is_first = kind_request.is_urgent or task_id == self.request.reserved_task
        return all(self._places(name) > (name in self._left_to_kept and not is_first) for name in kind_request.limits)

    def _available(self, name: str, kind_request: KindRequest, task_id: int) -> int:
        free = self._free.get(name, 0)
        if kind_request.is_urgent:
            return free + (0 if kind_request.is_backed_off else self.request.yielding.get(name, 0))
        return free if self._is_exempt(kind_request, task_id) else free - self._held.get(name, 0)

    def _is_exempt(self, kind_request: KindRequest, task_id: int) -> bool:
        return kind_request.is_urgent or kind_request.is_brief or task_id == self.request.reserved_task

    def _pass_over(self, task: ModelTask, requirements: Requirements, lacking: set[str]) -> None:
        """Capacity may be reserved only for the first task of a ready group, if it has a child process or a thread. Of
        several such tasks it is the first, if others may get what it waits for."""
        ready_group, kind_request = (
            (task.task.kind, task.task.queue, task.requirements),
            self.kind_requests[task.task.kind],
        )
        is_first = not lacking & {PROCESS, THREAD} and ready_group not in self._ready_groups
        if is_first and self._is_patient and self._may_keep(task.id):
            holders = [share for share in self._shares if lacking & share.keys()]
            if (
                kind_request.limits
                or WHOLE_NODE in lacking
                or not all(_covers(share, requirements.cost) for share in holders)
            ):
                self.claims.reserved = task.id
            self._is_patient = False
        self._ready_groups.add(ready_group)


def _covers(share: Mapping[str, int], cost: Mapping[str, int]) -> bool:
    return all(share.get(name, 0) >= amount for name, amount in cost.items() if name not in (PROCESS, THREAD))
