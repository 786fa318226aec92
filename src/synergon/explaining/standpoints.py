"""A node: the request that it would make of the store, from what it says of itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from synergon.durations import microseconds
from synergon.node.acceptance import Acceptance
from synergon.node.asking import Asking, sparing_one
from synergon.node.node import Node
from synergon.node.rivals import heeded, looks_of
from synergon.node_records import NodeRecord
from synergon.node_state import NodeState, places_on
from synergon.records import ClaimRequest, Room
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
            demand=said.weight,
            rank=said.rank,
            is_urgent=said.is_urgent,
            is_resting=kind in self.state.resting,
            is_brief=kind in self.state.brief,
        )

    def request(self, wanted: Collection[str]) -> ClaimRequest:
        """Its next claim, if there may be something of these kinds."""
        state, queues = self.state, self.record.queues
        asking = Asking({kind: state.kind(kind) for kind in self.record.kinds}, _SlotsSaid(state), self.room)
        return ClaimRequest(
            node_id=self.record.id,
            rooms=tuple(map(self._spared, asking.rooms(wanted))),
            limit=asking.limit,
            queues=None if queues is None else frozenset(queues),
            labels=frozenset(state.labels),
            totals=state.totals,
            free=state.free,
            yielding=state.yielding,
            kept_for=state.kept_for,
            held=state.held,
            patience=None if state.patience is None else microseconds(state.patience),
            shares=state.shares,
        )

    def heeding(self, request: ClaimRequest, nodes: Iterable[NodeRecord]) -> ClaimRequest:
        """The same request, so that it leaves places to others of these nodes."""
        state, own = self.state, {kind: self.state.kind(kind) for kind in self.record.kinds}
        looks = looks_of((node for node in nodes if node.id != self.record.id), own)
        rivals = heeded(
            looks,
            request,
            own,
            has_room=lambda kind: places_on(state, kind).room > 0,
            unheeded=state.unheeded,
        )
        return replace(request, rivals=rivals, past=frozenset(state.past)) if rivals else request

    def _spared(self, room: Room) -> Room:
        state = self.state
        if state.kept_for is None or room.kind != state.kept_kind:
            return room
        return sparing_one(room, places_on(state, room.kind).of_kind, state.kept_for)


class _SlotsSaid:
    """What a node says of its slots."""

    def __init__(self, state: NodeState) -> None:
        self.free = state.slots_free
        self.taken = state.taken
        self._running = state.running

    def count(self, kind: str) -> int:
        """How many of the kind run, or are about to."""
        return self._running.get(kind, 0)


def standpoint(record: NodeRecord, here: Node | None) -> Standpoint:
    """What the node says; the one of this process is asked, of the others it is read."""
    if here is not None and record.id == here.id:
        return Standpoint(record, here.state(), 0.0, here.acceptance)
    return Standpoint(record, _aged(record.state, record.published_ago), record.published_ago)


def _aged(state: NodeState, seconds: float) -> NodeState:
    """Rests that were over since it was said are over."""
    if not (state.resting or state.unheeded):
        return state
    return replace(state, resting=_later(state.resting, seconds), unheeded=_later(state.unheeded, seconds))


def _later(rests: dict[str, float], seconds: float) -> dict[str, float]:
    return {kind: left - seconds for kind, left in rests.items() if left > seconds}
