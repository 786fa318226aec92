"""A dry run of a node's next claim: shows whether the node would take the task or others first, without taking
anything.

It runs only if there is no other cause, or if capacity may be reserved. It reads few more tasks of each kind than the
node can start, and only the first task of a ready group that does not fit. So its cost depends on the slots of the
node, not on the backlog.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from synergon.explain.node_view import NodeView
from synergon.explain.shared_state import SharedState, ready_task
from synergon.model.claims import CandidateQuery, ClaimRequest, KindRequest
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskQuery, TaskRecord
from synergon.stores.base import Store
from synergon.stores.rules.claim_plan import ClaimPlan

Counts = Mapping[tuple[str, str, State], int]
"""The numbers of tasks by queue, kind and state."""

LOOKS: Final = 20
"""How many pages of a kind's tasks are read, if those before could not be taken."""

FIRST: Final = 50
"""How many tasks at least are read while capacity may be reserved for one that does not fit."""

COMMANDS_AT_A_TIME: Final = 1000
"""How many commands are read at a time."""


class DryRun(NamedTuple):
    """What a claim would do with a task."""

    is_taken: bool
    reserved: int | None = None
    """The task for which the claim would reserve capacity, because it has waited long and does not fit."""


async def dry_run(store: Store, node: NodeView, task: TaskRecord, shared: SharedState) -> DryRun:
    """Whether the node's next claim, for all kinds that have ready tasks, takes this task."""
    request = node.request(_wanted(node, task, await store.counts()))
    if all(kind_request.kind != task.kind for kind_request in request.kinds):
        return DryRun(False)
    claim = _DryClaim(store, request, shared)
    if node.state.reserved_task is not None and node.state.reserved_kind is not None:
        await claim.hold_reserved(node.state.reserved_task, node.kind_request(node.state.reserved_kind))
    return await claim.result_for(task)


def _wanted(node: NodeView, task: TaskRecord, counts: Counts) -> list[str]:
    """The kinds that have ready tasks for this node, without other kinds that use `can_accept`: they are claimed
    separately."""
    ready = {
        kind
        for (queue, kind, state), _ in counts.items()
        if state is State.READY and kind in node.record.kinds and node.serves(queue, kind)
    }
    return [kind for kind in sorted(ready | {task.kind}) if kind == task.kind or not node.state.kind(kind).is_asking]


class _DryClaim:
    """A claim that writes nothing: it offers the store's ready tasks to the planner."""

    def __init__(self, store: Store, request: ClaimRequest, shared: SharedState) -> None:
        self._store = store
        self._request = request
        self._shared = shared
        self._plan = ClaimPlan(request, shared.allotment())
        self._reserved: TaskRecord | None = None
        """The task for which the node has reserved capacity, if it may be taken."""

    async def hold_reserved(self, task_id: int, kind_request: KindRequest) -> None:
        """Hold permits for the reserved task, as a claim does, if the store still returns it as ready."""
        queues = self._request.queues
        (task,) = await self._store.get([task_id])
        if task is None or not (queues is None or task.queue in queues):
            return
        look = self._look(kind_request, (task.priority, task.id - 1), 1)
        look = replace(look, queues=frozenset({task.queue}), totals=self._request.totals)
        if any(found.id == task.id for found in await self._store.look(look)):
            self._reserved = task
            self._plan.shared.hold(kind_request, ready_task(task))

    async def result_for(self, task: TaskRecord) -> DryRun:
        """What the claim would do with this task."""
        async for first in self._in_order():
            may_reserve = self._shared.may_be_reserved(first, self._request)
            grant = self._plan.offer(ready_task(first, may_reserve=may_reserve))
            reserved = None if self._plan.reserved is None else self._plan.reserved.id
            if first.id == task.id or reserved is not None:
                return DryRun(grant is not None, reserved)
        return DryRun(False)

    async def _in_order(self) -> AsyncIterator[TaskRecord]:
        """The candidates of all kinds, in claim order."""
        kind_requests = self._request.kinds
        streams = [
            stream
            for kind_request in kind_requests
            for stream in (self._candidates(kind_request), self._reserved_of(kind_request))
        ]
        heads = [(stream, await anext(stream, None)) for stream in streams]
        while waiting := [(stream, first) for stream, first in heads if first is not None]:
            stream, first = min(waiting, key=lambda head: self._plan.order(ready_task(head[1])))
            yield first
            waiting.remove((stream, first))
            heads = [*waiting, (stream, await anext(stream, None))]

    async def _candidates(self, kind_request: KindRequest) -> AsyncIterator[TaskRecord]:
        """The candidates of one kind in order, without the reserved task."""
        if kind_request.is_command:
            for command in await self._commands(kind_request.kind):
                yield command
            return
        after: tuple[int, int] | None = None
        for _ in range(LOOKS):
            limit = self._plan.remaining(kind_request.kind)
            if limit <= 0 or not (found := await self._store.look(self._look(kind_request, after, limit))):
                return
            for task in found:
                if task.id != self._request.reserved_task and (
                    kind_request.only is None or task.id in kind_request.only
                ):
                    yield task
            after = found[-1].priority, found[-1].id

    def _look(self, kind_request: KindRequest, after: tuple[int, int] | None, limit: int) -> CandidateQuery:
        """The query for candidates. Tasks that fit later are read only while capacity may be reserved for one."""
        request, may_reserve = self._request, self._plan.node.may_reserve
        return CandidateQuery(
            kind_request=kind_request,
            queues=request.queues,
            labels=request.labels,
            totals=request.totals if may_reserve else self._plan.node.remaining(kind_request),
            after=after,
            without=self._plan.closed_groups(kind_request.kind),
            limit=max(limit, FIRST) if may_reserve else limit,
        )

    async def _reserved_of(self, kind_request: KindRequest) -> AsyncIterator[TaskRecord]:
        if self._reserved is not None and self._reserved.kind == kind_request.kind:
            yield self._reserved

    async def _commands(self, kind: str) -> list[TaskRecord]:
        """The ready commands of a kind, from every queue. There are never many."""
        query = TaskQuery(states=frozenset({State.READY}), kind=kind, limit=COMMANDS_AT_A_TIME)
        page = await self._store.list_tasks(query)
        found = list(page.tasks)
        while page.next is not None:
            page = await self._store.list_tasks(replace(query, before=page.next))
            found += page.tasks
        return sorted((task for task in found if not self._shared.is_expired(task)), key=lambda task: task.id)
