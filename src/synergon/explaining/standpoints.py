"""A node: the request that it would make of the store, from what it says of itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from synergon.demands import NOTHING, parse_demand
from synergon.node.acceptance import Acceptance
from synergon.node.asking import Asking
from synergon.node.node import Node
from synergon.node_state import NodeState, places_on
from synergon.records import ClaimRequest, NodeRecord, Room
from synergon.this_process import is_gone


class Standpoint(NamedTuple):
    """A node that is registered, and what it says of itself."""

    record: NodeRecord
    state: NodeState
    age: float
    """Seconds since it said so."""
    acceptance: Acceptance | None = None
    """What it was told about candidates, if it is the node of this process."""

    @property
    def is_silent(self) -> bool:
        """Whether it is dead, as far as anybody can see."""
        return self.record.lease_left <= 0 or is_gone(self.record.process)

    @property
    def is_cordoned(self) -> bool:
        """By its row, or by what it has heard since."""
        return self.record.is_cordoned or self.state.is_cordoned

    def serves(self, queue: str, kind: str) -> bool:
        """Whether it takes tasks of this kind from the queue."""
        queues = self.record.queues
        return queues is None or queue in queues or self.state.kind(kind).is_command

    def room(self, kind: str) -> Room:
        """What it would ask for."""
        said = self.state.kind(kind)
        return Room(
            kind=kind,
            count=max(places_on(self.state, kind).room, 0),
            limits=said.limits,
            provider=said.provider,
            is_command=said.is_command,
            demand=parse_demand(said.demand) if said.demand else NOTHING,
            rank=said.rank,
            is_urgent=said.is_urgent,
            is_resting=said.is_resting,
            is_brief=kind in self.state.brief,
        )

    def request(self, wanted: Collection[str]) -> ClaimRequest:
        """Its next claim, if there may be something of these kinds."""
        state, queues = self.state, self.record.queues
        asking = Asking({kind: state.kind(kind) for kind in self.record.kinds}, _PlacesSaid(state), self.room)
        rooms = asking.rooms(wanted)
        return ClaimRequest(
            node_id=self.record.id,
            rooms=tuple(rooms),
            limit=asking.limit(rooms),
            queues=None if queues is None else frozenset(queues),
            labels=frozenset(state.labels),
            totals=state.totals,
            free=state.free,
            yielding=state.yielding,
            kept_for=state.kept_for,
            held=state.held,
        )


class _PlacesSaid:
    """What a node says of its places."""

    def __init__(self, state: NodeState) -> None:
        self.free = state.slots_free
        self.processes_free = state.processes_free
        self.taken = state.taken
        self._running = state.running

    def count(self, kind: str) -> int:
        """How many of the kind run, or are about to."""
        return self._running.get(kind, 0)


def standpoint(record: NodeRecord, here: Node | None) -> Standpoint:
    """What the node says; the one of this process is asked, of the others it is read."""
    if here is not None and record.id == here.id:
        return Standpoint(record, here.state(), 0.0, here.acceptance)
    return Standpoint(record, record.state, record.published_ago)
