"""Whether other tasks go first: a node's next claim, without taking anything.

It is asked only where nothing else stands in the way. Of each kind not many more are looked at than the node could
start, and nothing that does not fit there by then: its cost follows from the slots of the node, not from the backlog.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

from msgspec.structs import replace

from synergon.explaining.shared import Shared, candidate
from synergon.explaining.standpoints import Standpoint
from synergon.lifecycle import State
from synergon.records import ClaimRequest, Look, Room, TaskQuery, TaskRecord
from synergon.stores.base import Store
from synergon.stores.weighing import Fit, Scales, demand_of, place

Counts = Mapping[tuple[str, str, State], int]
"""How many tasks there are by queue, kind and state."""

LOOKS: Final = 20
"""So often more tasks of a kind are looked at, if those before could not be taken."""

COMMANDS_AT_A_TIME: Final = 1000
"""So many commands are read at a time."""


async def is_taken(store: Store, node: Standpoint, task: TaskRecord, shared: Shared) -> bool:
    """Whether the next claim of the node, for all kinds of which something is ready, takes this task."""
    request = node.request(_wanted(node, task, await store.counts()))
    if all(room.kind != task.kind for room in request.rooms):
        return False
    rehearsal = _Rehearsal(store, request, shared)
    if node.state.kept_for is not None and node.state.kept_kind is not None:
        await rehearsal.keep_on(node.state.kept_for, node.room(node.state.kept_kind))
    return await rehearsal.takes(task)


def _wanted(node: Standpoint, task: TaskRecord, counts: Counts) -> list[str]:
    """The kinds of which something is ready for this node. Those that it asks about go their own way."""
    ready = {
        kind
        for (queue, kind, state), _ in counts.items()
        if state is State.READY and kind in node.record.kinds and node.serves(queue, kind)
    }
    return [kind for kind in sorted(ready | {task.kind}) if kind == task.kind or not node.state.kind(kind).is_asking]


class _Rehearsal:
    """A claim that takes nothing."""

    def __init__(self, store: Store, request: ClaimRequest, shared: Shared) -> None:
        self._store = store
        self._request = request
        self._shared = shared
        self._left = {room.kind: room.count for room in request.rooms}
        self._scales = Scales(request)
        self._places = shared.allotment()
        self._kept: TaskRecord | None = None
        """The task that room is kept for, if it may be taken."""

    async def keep_on(self, task_id: int, room: Room) -> None:
        """Leave to a task of the room what the claim leaves to it, beside resources."""
        (found,) = await self._store.get([task_id])
        if found is None:
            return
        just_before = found.priority, found.id - 1
        look = replace(self._look(room, just_before, 1), totals=self._request.totals)
        if [task.id for task in await self._store.look(look)] == [found.id]:
            self._kept = found
            self._places.hold(room, candidate(found))

    async def takes(self, task: TaskRecord) -> bool:
        """Whether it takes this one."""
        async for room, first in self._in_order():
            is_taken = self._take(room, first)
            if first.id == task.id:
                return is_taken
        return False

    async def _in_order(self) -> AsyncIterator[tuple[Room, TaskRecord]]:
        """The tasks that may be taken, of all kinds, in the order of a claim."""
        lanes = {room.kind: self._candidates(room) for room in self._request.rooms}
        heads = {room.kind: (room, await anext(lanes[room.kind], None)) for room in self._request.rooms}
        while waiting := [(room, first) for room, first in heads.values() if first is not None]:
            room, first = min(waiting, key=lambda head: self._place(*head))
            yield room, first
            heads[room.kind] = room, await anext(lanes[room.kind], None)

    def _place(self, room: Room, task: TaskRecord) -> tuple[bool, bool, int, int, int]:
        return place(room, task.priority, task.id, self._request.kept_for)

    async def _candidates(self, room: Room) -> AsyncIterator[TaskRecord]:
        """The tasks of a kind in order; not those that do not even fit when it comes to them."""
        if room.is_command:
            for command in await self._commands(room.kind):
                yield command
            return
        if self._kept is not None and self._kept.kind == room.kind:
            yield self._kept
        async for task in self._by_priority(room):
            if task.id != self._request.kept_for and (room.only is None or task.id in room.only):
                yield task

    async def _by_priority(self, room: Room) -> AsyncIterator[TaskRecord]:
        after: tuple[int, int] | None = None
        for _ in range(LOOKS):
            limit = self._left[room.kind]
            if limit <= 0 or not (found := await self._store.look(self._look(room, after, limit))):
                return
            for task in found:
                yield task
            after = found[-1].priority, found[-1].id

    def _look(self, room: Room, after: tuple[int, int] | None, limit: int) -> Look:
        request = self._request
        return Look(
            room=room,
            queues=request.queues,
            labels=request.labels,
            totals=self._scales.left(room),  # so that what would fit later is not even looked at
            after=after,
            limit=limit,
        )

    async def _commands(self, kind: str) -> list[TaskRecord]:
        """Those that are ready; there are not many, and they come from every queue."""
        query = TaskQuery(states=frozenset({State.READY}), kind=kind, limit=COMMANDS_AT_A_TIME)
        page = await self._store.list_tasks(query)
        found = list(page.tasks)
        while page.next is not None:
            page = await self._store.list_tasks(replace(query, before=page.next))
            found += page.tasks
        return sorted((task for task in found if not self._shared.is_expired(task)), key=lambda task: task.id)

    def _take(self, room: Room, task: TaskRecord) -> bool:
        if self._left[room.kind] <= 0 or self._scales.slots(room) <= 0:
            return False
        demand = demand_of(room, task.demand)
        if self._scales.fit(room, demand, task.id) is not Fit.NOW:
            return False
        if self._places.take(room, candidate(task)) is None:
            if task.target is None:
                self._left[room.kind] = 0  # what one task without wishes does not get, no other one of its kind gets
            return False
        self._scales.take(room, demand, task.id)
        self._left[room.kind] -= 1
        return True
