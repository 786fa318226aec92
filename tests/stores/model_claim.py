"""Who is given what, decided by looking at every task in order; the model's own word for `Scales` and the lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from synergon.demands import Demand
from synergon.records import ClaimRequest, Look, Room
from synergon.stores.weighing import demand_of

if TYPE_CHECKING:
    from tests.stores.model import ModelTask

Place = tuple[bool, int, int, int]


@dataclass
class ModelClaims:
    """What a node is told."""

    taken: list[ModelTask] = field(default_factory=list)
    kept: int | None = None
    is_cordoned: bool = False


def place(room: Room, task: ModelTask) -> Place:
    """Smaller goes first."""
    return not room.is_urgent, -task.priority, room.rank, task.id


def suits(demand: Demand, labels: frozenset[str], totals: Mapping[str, int]) -> bool:
    """Whether such a node could ever run it."""
    has_labels = all(label in labels for label in demand.needs) and not any(label in labels for label in demand.forbids)
    return has_labels and all(totals.get(name, 0) >= amount for name, amount in demand.cost.items())


def looked_at(look: Look, tasks: Iterable[ModelTask]) -> list[int]:
    """What a node sees that looks at these, which it might claim."""
    found = sorted(
        (task for task in tasks if suits(demand_of(look.room, task.task.demand), look.labels, look.totals)),
        key=lambda task: place(look.room, task),
    )
    after = None if look.after is None else (-look.after[0], look.after[1])
    behind = [task.id for task in found if after is None or (-task.priority, task.id) > after]
    return behind[: look.limit]


class ModelClaim:
    """One claim."""

    def __init__(
        self, request: ClaimRequest, has_place: Callable[[str], bool], may_keep: Callable[[int], bool]
    ) -> None:
        self.request = request
        self.rooms = {room.kind: room for room in request.rooms}
        self.claims = ModelClaims()
        self._has_place = has_place
        self._may_keep = may_keep
        self._left = {room.kind: room.count for room in request.rooms}
        self._slots = request.limit
        self._free = dict(request.free)
        self._held = dict(request.held)
        self._lanes: set[tuple[str, str, str]] = set()
        """Those of which something did not fit."""

    def choose(self, tasks: Iterable[ModelTask], start: Callable[[ModelTask, frozenset[str]], None]) -> None:
        """Of tasks that may be claimed, in order."""
        asked = [task for task in tasks if task.task.kind in self.rooms]
        for task in sorted(asked, key=self._place):
            if self.claims.kept is None and self._takes(task):
                self.claims.taken.append(task)
                start(task, frozenset(self.rooms[task.task.kind].limits))

    def _place(self, task: ModelTask) -> tuple[bool, bool, Place]:
        """The one that room is kept for goes first, but for what is urgent."""
        room = self.rooms[task.task.kind]
        return not room.is_urgent, task.id != self.request.kept_for, place(room, task)

    def _takes(self, task: ModelTask) -> bool:
        room = self.rooms[task.task.kind]
        demand = demand_of(room, task.task.demand)
        if self._left[room.kind] <= 0 or (room.only is not None and task.id not in room.only):
            return False
        if not suits(demand, self.request.labels, self.request.totals) or not all(map(self._has_place, room.limits)):
            return False
        if any(amount > self._available(name, room, task.id) for name, amount in demand.cost.items()):
            self._pass_over(task)
            return False
        if self._slots <= 0 and not room.is_urgent:
            return False
        self._left[room.kind] -= 1
        self._slots -= 1
        for name, amount in demand.cost.items():
            self._free[name] = self._free.get(name, 0) - amount
        if task.id == self.request.kept_for:
            self._held = {}
        return True

    def _available(self, name: str, room: Room, task_id: int) -> int:
        free = self._free.get(name, 0)
        if room.is_urgent:
            return free + (0 if room.is_resting else self.request.yielding.get(name, 0))
        is_exempt = room.is_brief or task_id == self.request.kept_for
        return free if is_exempt else free - self._held.get(name, 0)

    def _pass_over(self, task: ModelTask) -> None:
        """Only the first of those that demand the same may have room kept for it."""
        lane = task.task.kind, task.task.queue, task.task.demand
        is_patient = self.request.patience == 0 and self.request.kept_for is None
        if lane not in self._lanes and is_patient and self._may_keep(task.id):
            self.claims.kept = task.id
        self._lanes.add(lane)
