"""The claim of the memory store, with a fast path of its own for tasks that need nothing but a slot.

The fast path takes the first tasks of the ready groups one by one, without sorting candidates. All other claims use the
rule (`rules.claim`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from synergon.model.claims import ClaimRequest, Claims, KindRequest
from synergon.stores.memory.ready_groups import ReadyGroup
from synergon.stores.memory.ready_rows import open_groups, start
from synergon.stores.memory.row import Row
from synergon.stores.memory.session import Session
from synergon.stores.memory.tables import Tables
from synergon.stores.rules import claim as rule


async def claim(session: Session, request: ClaimRequest) -> Claims:
    """Claim the first ready tasks in claim order that fit the node. A cordoned node gets none. Raises `LeaseLost` if
    the node has no live lease."""
    tables, now = session.tables, session.now
    is_cordoned = await session.ready.is_cordoned(request.node_id)
    if is_cordoned is not False:
        return rule.rejected(request.node_id, is_cordoned=is_cordoned)
    plain = _plain(tables, request)
    if plain is not None:
        return Claims(start(tables, row, request.node_id, now) for row in _first_in_order(tables, plain, now))
    return await rule.claim(session, request, (await session.ready.groups(request)).groups)


def _plain(tables: Tables, request: ClaimRequest) -> ClaimRequest | None:
    """Prepare the request for the fast path. Returns None if slots alone do not decide which tasks are claimed."""
    if any(tables.ready.has_requirements(kind.kind) for kind in request.kinds):
        return None
    return request.by_slots_alone(_with_tasks(tables, request))


def _with_tasks(tables: Tables, request: ClaimRequest) -> Sequence[KindRequest]:
    """The kinds of the request. If the tenants of any kind take turns, kinds without ready tasks are left out."""
    if not any(kind.is_fair for kind in request.kinds):
        return request.kinds
    return [kind for kind in request.kinds if any(group.count for group in tables.ready.ready_groups(kind.kind))]


def _first_in_order(tables: Tables, request: ClaimRequest, now: int) -> Iterator[Row]:
    """Take the first tasks of the ready groups, in claim order. The caller starts each task before it takes the
    next."""
    left_of = {kind.kind: kind.count for kind in request.kinds}
    heads = _heads(tables, request, now)
    left = request.limit
    while heads and left > 0:
        (negated_priority, rank, tag, task_id), kind, queue, group = heads[0]
        if left_of[kind] == 0:  # another queue of this kind has used the count
            heappop(heads)
            continue
        yield group.pop((negated_priority, tag, task_id))
        left -= 1
        left_of[kind] -= 1
        following = group.head(now)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, ((following[0], rank, *following[1:]), kind, queue, group))


def _heads(
    tables: Tables, request: ClaimRequest, now: int
) -> list[tuple[tuple[int, int, int, int], str, str, ReadyGroup]]:
    """A heap of the ready groups that have tasks, ordered by their first task."""
    heads = [
        ((head[0], kind.rank, *head[1:]), kind.kind, group.queue, group)
        for kind in request.kinds
        if kind.count > 0
        for group in open_groups(tables, kind.kind, request.queues)
        if (head := group.head(now)) is not None
    ]
    heapify(heads)
    return heads
