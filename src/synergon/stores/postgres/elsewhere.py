"""What only other nodes could take: a claim looks at it where it may be better than what it takes itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from synergon.model.claims import CandidateQuery, ClaimRequest
from synergon.model.requirements import is_suitable
from synergon.stores.leaving import MOST_LEFT, Elsewhere, sought
from synergon.stores.node_capacity import requirements_of
from synergon.stores.postgres.choice import Contender, contender
from synergon.stores.postgres.commands import ready_commands
from synergon.stores.postgres.prefix_limits import Covering, limits_above, providers_of
from synergon.stores.postgres.ready_groups import Lanes
from synergon.stores.postgres.session import Session
from synergon.stores.shared_capacity import SharedCapacity


async def looks_elsewhere(
    session: Session, asked: ClaimRequest, rest: ClaimRequest, lanes: Lanes, covering: Covering
) -> list[CandidateQuery]:
    """Where to look before something is taken of the rest, of which there is something. The limits and servers of what
    may be seen there have a say, too: they are locked with the others."""
    if not asked.rivals:
        return []
    above = await limits_above(session, providers_of(rest.kinds), covering)
    ours = [(room, text) for room in rest.kinds for text in lanes.demands.get(room.kind, ())]
    return sought(asked, ours, is_covered=bool(above))


async def seen_elsewhere(
    session: Session, looks: Sequence[CandidateQuery], request: ClaimRequest, allotment: SharedCapacity
) -> list[Elsewhere]:
    """What is there. Where there is no place for anything, there is none to leave, either."""
    if not looks or all(allotment.most(room) <= 0 for room in request.kinds):
        return []
    commands = {look.room.kind: look.room for look in looks if look.room.is_command}
    found = await ready_commands(session, request, commands.values(), allotment, limit=MOST_LEFT)
    kinds = sorted({look.room.kind for look in looks} - commands.keys())
    if kinds:
        found += map(contender, await session.rows("ready_elsewhere", kinds, MOST_LEFT))
    return [one for look in looks for one in _of(look, found)]


def _of(look: CandidateQuery, found: Iterable[Contender]) -> list[Elsewhere]:
    suited = [
        Elsewhere(look.room, one.candidate, one.queue, one.requirements)
        for one in found
        if one.candidate.kind == look.room.kind
        and (look.room.is_command or look.queues is None or one.queue in look.queues)
        and is_suitable(requirements_of(look.room, one.requirements), look.labels, look.totals)
    ]
    return sorted(suited, key=lambda one: one.place)[: look.limit]
