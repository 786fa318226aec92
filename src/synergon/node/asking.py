"""What a node asks for in one request, of the places that it has: the rules by which kinds share them.

A node follows them, and whoever explains what the node would ask for follows the same ones: they look at nothing but
what a node says of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from synergon.demands import AS_THE_KIND_SAYS, NOTHING
from synergon.node.fairness import Fairness, Slots
from synergon.node_state import KindState
from synergon.records import Room
from synergon.task import AnyTask


class Capacity(Slots, Protocol):
    """Slots, and child processes."""

    @property
    def processes_free(self) -> int:
        """How many more could start in child processes."""


class Asking:
    """Chooses the rooms of a request, so that not more can be taken than there is room for."""

    def __init__(self, kinds: Mapping[str, KindState], places: Capacity, room: Callable[[str], Room]) -> None:
        self._kinds = kinds
        self._places = places
        self._room = room
        providers = {
            kind: said.provider for kind, said in kinds.items() if said.provider is not None and not said.is_command
        }
        self._fairness = Fairness(providers, places, lambda kind: room(kind).count)

    def rooms(self, wanted: Collection[str]) -> list[Room]:
        """What to ask for of the wanted kinds."""
        shares = self._fairness.shares(wanted)
        return self._together([room for kind in wanted if (room := self._shared(kind, shares.get(kind))).count > 0])

    def limit(self, rooms: Sequence[Room]) -> int:
        """How many to take of these in all."""
        places = self._places
        in_processes = sum(self._is_process(room) for room in rooms)
        return max(min(places.free, places.processes_free) if in_processes > 1 else places.free, 0)

    def _shared(self, kind: str, share: int | None) -> Room:
        room = self._room(kind)
        if share is None or room.is_urgent:  # what is urgent waits for no provider's turn
            return room
        return msgspec.structs.replace(room, count=min(room.count, share))

    def _together(self, rooms: list[Room]) -> list[Room]:
        """Those that can be asked for in one request, without more being taken than there is room for; the others have
        their turn in the next one."""
        urgent = [room for room in rooms if room.is_urgent]
        if len(urgent) > 1:
            return self._shares(urgent)
        in_processes = [room for room in rooms if self._is_process(room)]
        if len(in_processes) <= 1:
            return rooms
        if any(not self._is_process(room) for room in urgent):
            return [room for room in rooms if not self._is_process(room)]
        return in_processes  # they share the places of child processes, so they are asked for together and alone

    def _shares(self, urgent: list[Room]) -> list[Room]:
        """No limit keeps urgent tasks from being taken, only the room of their kind: so the kinds share what there is,
        before anybody else."""
        urgent = sorted(urgent, key=lambda room: (-self._kinds[room.kind].priority, room.rank, room.kind))
        if any(self._is_process(room) for room in urgent):
            return urgent[:1]
        most = max(room.count for room in urgent)
        share = max(most // len(urgent), 1)
        return [msgspec.structs.replace(room, count=min(room.count, share)) for room in urgent[:most]]

    def _is_process(self, room: Room) -> bool:
        return self._kinds[room.kind].is_process


def kind_state(room: Room, task_type: AnyTask) -> KindState:
    """What a node says of one of its kinds."""
    return KindState(
        max_running=task_type.policy.max_running,
        is_process=task_type.policy.runs_in == "process",
        demand=AS_THE_KIND_SAYS if room.demand == NOTHING else room.demand.text,
        rank=room.rank,
        priority=task_type.policy.priority,
        is_urgent=room.is_urgent,
        is_resting=room.is_resting,
        is_asking=task_type.acceptor is not None,
        is_command=room.is_command,
        limits=room.limits,
        provider=room.provider,
    )
