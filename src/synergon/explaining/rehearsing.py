"""Whether other tasks go first: a node's next claim, without taking anything.

It is asked only where nothing else stands in the way. Of each kind no more is looked at than the node could start, and
nothing that does not fit there now: its cost follows from the slots of the node, not from the backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from synergon.explaining.shared import Shared, candidate
from synergon.explaining.standpoints import Standpoint
from synergon.lifecycle import State
from synergon.node_state import KindState
from synergon.records import ClaimRequest, Look, Room, TaskRecord
from synergon.stores.base import Store
from synergon.stores.weighing import Fit, Scales, demand_of, place

Counts = Mapping[tuple[str, str, State], int]
"""How many tasks there are by queue, kind and state."""


async def is_taken(store: Store, node: Standpoint, task: TaskRecord, shared: Shared) -> bool:
    """Whether the next claim of the node, for all of its kinds, takes this task."""
    if task.is_command:  # these go first, and have places of their own
        return True
    request = node.request([task.kind])
    found = await _candidates(store, request, request.rooms[0])
    if all(other.id != task.id for other in found):
        return False
    request = node.request(_kinds(node, task, await store.counts()))
    rooms = {room.kind: room for room in request.rooms}
    for room in rooms.values():
        if room.kind != task.kind and room.count > 0:
            found += await _candidates(store, request, room)
    ahead = sorted(found, key=lambda other: place(rooms[other.kind], other.priority, other.id))
    return task.id in _taken(request, ahead, shared)


def _kinds(node: Standpoint, task: TaskRecord, counts: Counts) -> list[str]:
    """The kinds of which something is ready for this node. Those that it asks about go their own way."""
    ready = {
        kind
        for (queue, kind, state), _ in counts.items()
        if state is State.READY and kind in node.record.kinds and node.serves(queue, kind)
    }
    said = node.state.kind
    return [kind for kind in sorted(ready | {task.kind}) if kind == task.kind or not _is_apart(said(kind))]


def _is_apart(kind: KindState) -> bool:
    return kind.is_asking or kind.is_command


async def _candidates(store: Store, request: ClaimRequest, room: Room) -> list[TaskRecord]:
    """The first of a kind that fit now."""
    return await store.look(
        Look(
            room=room,
            queues=request.queues,
            labels=request.labels,
            totals=Scales(request).left(room),  # so that what would fit later is not even looked at
            limit=max(room.count, 1),
        )
    )


def _taken(request: ClaimRequest, tasks: list[TaskRecord], shared: Shared) -> set[int]:
    """What a claim takes of these, which are in order."""
    rooms = {room.kind: room for room in request.rooms}
    left = Counter({kind: room.count for kind, room in rooms.items()})
    slots, scales, places = request.limit, Scales(request), shared.allotment()
    taken: set[int] = set()
    for task in tasks:
        room = rooms[task.kind]
        demand = demand_of(room, task.demand)
        if left[task.kind] <= 0 or (slots <= 0 and not room.is_urgent):
            continue
        if scales.fit(room, demand, task.id) is not Fit.NOW:
            continue
        if places.take(room, candidate(task)) is None:
            left[task.kind] = 0  # what one task without wishes does not get, no other one of its kind gets
            continue
        scales.take(demand, task.id)
        left[task.kind] -= 1
        slots -= 1
        taken.add(task.id)
    return taken
