"""Whether other tasks go first: a node's next claim, without taking anything.

It is asked only where nothing else stands in the way, or where room may be kept. Of each kind not many more are looked
at than the node could start, and of what demands the same and does not fit there by then, the first alone: its cost
follows from the slots of the node, not from the backlog.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from synergon.explain.node_view import NodeView
from synergon.explain.shared_state import SharedState, candidate
from synergon.model.claims import CandidateQuery, ClaimRequest, KindRequest
from synergon.model.lifecycle import State
from synergon.model.requirements import Requirements, is_suitable
from synergon.model.task_records import TaskQuery, TaskRecord
from synergon.stores.base import Store
from synergon.stores.leaving import Leaving, seen
from synergon.stores.node_capacity import Fit, NodeCapacity, claim_order, requirements_of

Counts = Mapping[tuple[str, str, State], int]
"""How many tasks there are by queue, kind and state."""

LOOKS: Final = 20
"""So often more tasks of a kind are looked at, if those before could not be taken."""

FIRST: Final = 50
"""So many at least are looked at while room may be kept for one that does not fit."""

COMMANDS_AT_A_TIME: Final = 1000
"""So many commands are read at a time."""


class DryRun(NamedTuple):
    """What comes of a task in a claim."""

    is_taken: bool
    kept: int | None = None
    """The claim ends at this task, which has waited for long and does not fit: room is kept for it from then on."""
    left: tuple[int, ...] = ()
    """Tasks of other nodes to which places are left."""


async def dry_run(store: Store, node: NodeView, task: TaskRecord, shared: SharedState) -> DryRun:
    """Whether the next claim of the node, for all kinds of which something is ready, takes this task."""
    request = node.request(_wanted(node, task, await store.counts()))
    if all(room.kind != task.kind for room in request.kinds):
        return DryRun(False)
    request = node.heeding(request, shared.nodes)
    rehearsal = _Claim(store, request, shared)
    if node.state.reserved_task is not None and node.state.reserved_kind is not None:
        await rehearsal.keep_on(node.state.reserved_task, node.room(node.state.reserved_kind))
    return await rehearsal.of(task)


def _wanted(node: NodeView, task: TaskRecord, counts: Counts) -> list[str]:
    """The kinds of which something is ready for this node. Those that it asks about go their own way."""
    ready = {
        kind
        for (queue, kind, state), _ in counts.items()
        if state is State.READY and kind in node.record.kinds and node.serves(queue, kind)
    }
    return [kind for kind in sorted(ready | {task.kind}) if kind == task.kind or not node.state.kind(kind).is_asking]


class _Claim:
    """A claim that takes nothing."""

    def __init__(self, store: Store, request: ClaimRequest, shared: SharedState) -> None:
        self._store = store
        self._request = request
        self._shared = shared
        self._left = {room.kind: room.count for room in request.kinds}
        self._scales = NodeCapacity(request)
        self._places = shared.allotment()
        self._leaving = Leaving(request, self._places)
        self._closed: set[tuple[str, str, str]] = set()
        """Lanes, by kind, queue and requirements, whose first could not be taken: nor could any behind it."""
        self._kept: int | None = None
        self._kept_for: TaskRecord | None = None
        """The task that the node keeps room for already, if it may be taken."""

    async def keep_on(self, task_id: int, room: KindRequest) -> None:
        """Leave to a task of the room what the claim leaves to it, beside resources. It may be taken if it is what is
        found just behind the place before its own."""
        queues = self._request.queues
        (task,) = await self._store.get([task_id])
        if task is None or not (queues is None or task.queue in queues):
            return
        look = self._look(room, (task.priority, task.id - 1), 1)
        look = replace(look, queues=frozenset({task.queue}), totals=self._request.totals)
        if any(found.id == task.id for found in await self._store.look(look)):
            self._kept_for = task
            self._places.hold(room, candidate(task))

    async def of(self, task: TaskRecord) -> DryRun:
        """What comes of this one."""
        elsewhere = [seen(look, task) for look in self._request.rivals for task in await self._seen(look)]
        self._leaving = Leaving(self._request, self._places, elsewhere)
        async for room, first in self._in_order():
            is_taken = self._take(room, first)
            if first.id == task.id or self._kept is not None:
                return DryRun(is_taken, self._kept, self._left_to)
        return DryRun(False, left=self._left_to)

    async def _seen(self, look: CandidateQuery) -> Sequence[TaskRecord]:
        """What another node could take."""
        if not look.room.is_command:
            return await self._store.look(look)
        return [
            command
            for command in await self._commands(look.room.kind)
            if is_suitable(requirements_of(look.room, command.requirements), look.labels, look.totals)
            and self._places.has_place(look.room, candidate(command))
        ]

    @property
    def _left_to(self) -> tuple[int, ...]:
        return tuple(task_id for task_id, _ in self._leaving.left)

    async def _in_order(self) -> AsyncIterator[tuple[KindRequest, TaskRecord]]:
        """The tasks that may be taken, of all kinds, in the order of a claim."""
        rooms, reserved_task = self._request.kinds, self._request.reserved_task
        lines = [(room, line) for room in rooms for line in (self._candidates(room), self._kept_of(room))]
        heads = [(room, line, await anext(line, None)) for room, line in lines]
        while waiting := [(room, line, first) for room, line, first in heads if first is not None]:
            room, line, first = min(
                waiting, key=lambda head: claim_order(head[0], head[2].priority, head[2].id, reserved_task)
            )
            if _ready_group(first) not in self._closed or first.id == reserved_task:
                yield room, first
            waiting.remove((room, line, first))
            heads = [*waiting, (room, line, await anext(line, None))]

    async def _candidates(self, room: KindRequest) -> AsyncIterator[TaskRecord]:
        """The tasks of a kind in order, without the one that room is kept for."""
        if room.is_command:
            for command in await self._commands(room.kind):
                yield command
            return
        after: tuple[int, int] | None = None
        for _ in range(LOOKS):
            limit = self._left[room.kind]
            if limit <= 0 or not (found := await self._store.look(self._look(room, after, limit))):
                return
            for task in found:
                if task.id != self._request.reserved_task and (room.only is None or task.id in room.only):
                    yield task
            after = found[-1].priority, found[-1].id

    def _look(self, room: KindRequest, after: tuple[int, int] | None, limit: int) -> CandidateQuery:
        """What would fit later is looked at only as long as room may be kept for it."""
        request, may_keep = self._request, self._scales.may_keep
        return CandidateQuery(
            room=room,
            queues=request.queues,
            labels=request.labels,
            totals=request.totals if may_keep else self._scales.left(room),
            after=after,
            without=frozenset((queue, requirements) for kind, queue, requirements in self._closed if kind == room.kind),
            limit=max(limit, FIRST) if may_keep else limit,
        )

    async def _kept_of(self, room: KindRequest) -> AsyncIterator[TaskRecord]:
        if self._kept_for is not None and self._kept_for.kind == room.kind:
            yield self._kept_for

    async def _commands(self, kind: str) -> list[TaskRecord]:
        """Those that are ready; there are not many, and they come from every queue."""
        query = TaskQuery(states=frozenset({State.READY}), kind=kind, limit=COMMANDS_AT_A_TIME)
        page = await self._store.list_tasks(query)
        found = list(page.tasks)
        while page.next is not None:
            page = await self._store.list_tasks(replace(query, before=page.next))
            found += page.tasks
        return sorted((task for task in found if not self._shared.is_expired(task)), key=lambda task: task.id)

    def _take(self, room: KindRequest, task: TaskRecord) -> bool:
        if self._left[room.kind] <= 0:
            return False
        requirements = requirements_of(room, task.requirements)
        fit = self._scales.fit(room, requirements, task.id)
        if fit is not Fit.NOW or self._scales.slots(room) <= 0:
            self._closed.add(_ready_group(task))
            if fit is Fit.LATER and self._is_to_be_kept(room, task, requirements):
                self._kept = task.id
            return False
        self._leaving.let_pass(claim_order(room, task.priority, task.id, self._request.reserved_task))
        if self._places.take(room, candidate(task)) is None:
            self._leaving.refused(room, candidate(task))
            if task.target is None:
                self._left[room.kind] = 0  # what one task without wishes does not get, no other one of its kind gets
            return False
        self._leaving.taken(task.id)
        self._scales.take(room, requirements, task.id)
        self._left[room.kind] -= 1
        return True

    def _is_to_be_kept(self, room: KindRequest, task: TaskRecord, requirements: Requirements) -> bool:
        """Whether the claim ends here, and the node keeps room for the task."""
        may_be_kept = self._scales.may_keep and self._shared.may_be_kept(task, self._request)
        if not may_be_kept or not self._places.has_place(room, candidate(task)):
            return False
        return self._scales.is_worth_keeping(room, requirements, task.id)


def _ready_group(task: TaskRecord) -> tuple[str, str, str]:
    return task.kind, task.queue, task.requirements
