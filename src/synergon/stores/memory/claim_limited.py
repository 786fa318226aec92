"""Claims where more than a slot of the node decides who may start: demands, limits, servers, commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Final

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.lifecycle import State
from synergon.model.requirements import is_suitable
from synergon.stores.memory.ready_groups import ReadyGroup
from synergon.stores.memory.reservations import hold_permits, may_be_reserved, ready_task
from synergon.stores.memory.row import Row
from synergon.stores.memory.servers import allotment
from synergon.stores.memory.tables import Tables
from synergon.stores.rules.claim_plan import ClaimPlan
from synergon.stores.rules.node_capacity import claim_order, requirements_of
from synergon.stores.rules.shared_capacity import Grant, SharedCapacity

MOST_ASIDE: Final = 1000
"""How many tasks that wait for one server are passed over in the search for one that does not."""

Head = tuple[tuple[bool, bool, int, int, int], int, KindRequest, ReadyGroup]
"""Where the first task of a lane stands, a number that no other head has, and where it came from."""


def open_ready_groups(tables: Tables, kind: str, queues: frozenset[str] | None) -> Iterator[ReadyGroup]:
    """The lanes of a kind from which may be taken."""
    return (
        ready_group
        for ready_group in tables.ready.ready_groups(kind, queues)
        if tables.queues[ready_group.queue] is None
    )


class LimitedClaim:
    """One claim: the first tasks in order that the node can carry and that there is a place for."""

    def __init__(self, tables: Tables, request: ClaimRequest, now: int) -> None:
        self._tables = tables
        self._request = request
        self._now = now
        shared = _shared_capacity(tables, request, now)
        if request.reserved_task is not None:
            hold_permits(tables, request, shared, now)
        self.plan = ClaimPlan(request, shared)
        self._aside: list[tuple[ReadyGroup, Row]] = []

    def taken(self) -> Iterator[tuple[Row, Grant]]:
        """The tasks, each with its permits. The caller starts each before it asks for the next."""
        try:
            yield from self._taken()
        finally:
            for ready_group, row in self._aside:
                ready_group.add(row)

    def _taken(self) -> Iterator[tuple[Row, Grant]]:
        heads = self._heads()
        while heads:
            known, number, kind_request, ready_group = heads[0]
            first = ready_group.head(self._now)
            if first is None:
                heappop(heads)
                continue
            row = ready_group.peek(first)
            task = ready_task(row, may_reserve=may_be_reserved(self._tables, self._request, row, self._now))
            order = self.plan.order(task)
            if order != known:
                heapreplace(heads, (order, number, kind_request, ready_group))
            elif (grant := self.plan.offer(task)) is not None:
                yield ready_group.pop(first), grant
            elif not self.plan.may_take_more(task) or (kind_request.is_command and task.target is not None):
                heappop(heads)  # no task behind it in this group can be taken
            elif task.target is None or len(self._aside) >= MOST_ASIDE:
                heappop(heads)
            else:
                self._aside.append((ready_group, ready_group.pop(first)))

    def _heads(self) -> list[Head]:
        """A heap of the lanes that have something to offer to this node, by what they offer."""
        ready_groups = (
            (kind_request, ready_group)
            for kind_request in self._request.kinds
            if kind_request.count > 0
            for ready_group in self._ready_groups(kind_request)
        )
        heads = [
            (
                claim_order(kind_request, -first[0], first[1], self._request.reserved_task),
                number,
                kind_request,
                ready_group,
            )
            for number, (kind_request, ready_group) in enumerate(ready_groups)
            if (first := ready_group.head(self._now)) is not None
        ]
        heapify(heads)
        return heads

    def _ready_groups(self, kind_request: KindRequest) -> list[ReadyGroup]:
        request = self._request
        found: Iterable[ReadyGroup]
        if kind_request.is_command:  # these are for a provider, and come from any queue
            found = self._tables.ready.ready_commands(kind_request.kind)
        elif kind_request.only is None:
            found = [
                *open_ready_groups(self._tables, kind_request.kind, request.queues),
                *self._ready_groups_of(kind_request, [request.reserved_task]),
            ]
        else:
            reserved_task = [task_id for task_id in kind_request.only if task_id == request.reserved_task]
            found = [
                *self._ready_groups_of(kind_request, kind_request.only),
                *self._ready_groups_of(kind_request, reserved_task),
            ]
        return [
            ready_group
            for ready_group in found
            if is_suitable(requirements_of(kind_request, ready_group.requirements), request.labels, request.totals)
        ]

    def _ready_groups_of(self, kind_request: KindRequest, ids: Iterable[int | None]) -> Iterable[ReadyGroup]:
        """Lanes of these tasks alone, beside those in which they stand."""
        queues = self._request.queues
        ready_groups: dict[tuple[str, str], ReadyGroup] = {}
        for row in (self._tables.rows.get(task_id or 0) for task_id in ids):
            if row is None or row.state is not State.READY or row.task.kind != kind_request.kind or row.task.is_command:
                continue
            name = row.task.queue, row.task.requirements
            if self._tables.queues[name[0]] is None and (queues is None or name[0] in queues):
                ready_groups.setdefault(name, ReadyGroup(*name)).add(row)
        return ready_groups.values()


def _shared_capacity(tables: Tables, request: ClaimRequest, now: int) -> SharedCapacity:
    is_shared = any(kind_request.limits or kind_request.provider is not None for kind_request in request.kinds)
    return allotment(tables, now) if is_shared else SharedCapacity({}, (), ())
