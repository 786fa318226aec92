"""What other nodes could take of that which shares places with the kinds of this one, as their rows say.

Limits, servers and the limits that cover servers are shared by all nodes, and so are their places: who frees one and
takes it again at once keeps it from better tasks that only others could take. Whether somebody else has a slot at this
very moment is not asked: a busy node has one again and again, and for those that have none nobody waits for long
(`Courtesy`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from synergon.model.claims import CandidateQuery, ClaimRequest, KindRequest
from synergon.model.node_status import KindStatus, NodeStatus, free_slots_on
from synergon.model.nodes import NodeRecord
from synergon.node.claims.shared_kinds import SERVERS
from synergon.stores.leaving import MOST_LEFT, are_served


def looks_of(others: Iterable[NodeRecord], own: Mapping[str, KindStatus]) -> tuple[CandidateQuery, ...]:
    """What these nodes could take that may want places which tasks of our kinds want."""
    names = {name for said in own.values() for name in shared_by(said)}
    if not names:
        return ()
    found = [
        _look(node, state, kind)
        for node in others
        if node.lease_left > 0 and node.concurrency > 0 and _is_open(node, state := node.state)
        for kind in node.kinds
        if not names.isdisjoint(shared_by(state.kind(kind))) and _has_place(state, kind)
    ]
    return _merged(found)


def heeded(
    looks: Iterable[CandidateQuery],
    request: ClaimRequest,
    own: Mapping[str, KindStatus],
    *,
    has_room: Callable[[str], bool],
    unheeded: Collection[str],
) -> tuple[CandidateQuery, ...]:
    """Those of them that concern a request. What the node could start and does not ask for is not ready, as far as it
    knows; and what becomes of kinds that it asks about (`can_accept`) is between it and whom it asks."""
    if not any(room.limits or room.provider is not None for room in request.kinds):
        return ()
    asked = {room.kind for room in request.kinds}

    def concerns(look: CandidateQuery) -> bool:
        kind = look.room.kind
        if kind in unheeded or kind not in own:
            return kind not in unheeded
        return not own[kind].is_asking and (
            kind in asked or not has_room(kind) or not are_served(look.queues, request.queues)
        )

    return tuple(filter(concerns, looks))


def _is_open(node: NodeRecord, state: NodeStatus) -> bool:
    return not (node.is_cordoned or state.is_cordoned or state.is_stopping or state.leaving is not None)


def _has_place(state: NodeStatus, kind: str) -> bool:
    """Who runs as many of a kind as may run there takes the next one when one of them ends, in the place of that."""
    of_kind = free_slots_on(state, kind).of_kind
    return of_kind is None or of_kind > 0


def shared_by(said: KindStatus | KindRequest) -> set[str]:
    """What tasks of a kind take places in. Limits may cover servers of several providers, so all who use servers may
    have one in common."""
    return {*said.limits} if said.provider is None else {*said.limits, SERVERS}


def _look(node: NodeRecord, state: NodeStatus, kind: str) -> CandidateQuery:
    said, of_kind = state.kind(kind), free_slots_on(state, kind).of_kind
    room = KindRequest(
        kind=kind,
        count=1,
        limits=said.limits,
        provider=said.provider,
        is_command=said.is_command,
        requirements=said.weight,
        rank=said.rank,
        is_urgent=said.is_urgent,
    )
    queues = () if said.is_command else node.queues  # commands come from every queue: none has to be served for them
    return CandidateQuery(
        room=room,
        queues=None if queues is None else frozenset(queues),
        labels=frozenset(state.labels),
        totals=state.totals,
        limit=MOST_LEFT if of_kind is None else min(of_kind, MOST_LEFT),
    )


def _merged(looks: Iterable[CandidateQuery]) -> tuple[CandidateQuery, ...]:
    """Nodes that differ in nothing but in how much they have are as one that has as much as any of them: there may be
    many of them."""
    merged: dict[bytes, CandidateQuery] = {}
    for look in looks:
        name = msgspec.json.encode((look.room, look.queues and sorted(look.queues), sorted(look.labels)))
        known = merged.get(name, look)
        totals = {key: max(known.totals.get(key, 0), look.totals.get(key, 0)) for key in known.totals | look.totals}
        merged[name] = msgspec.structs.replace(known, totals=totals, limit=max(known.limit, look.limit))
    return tuple(merged.values())
