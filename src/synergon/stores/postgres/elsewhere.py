"""What only other nodes could take: a claim looks at it where it may be better than what it takes itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from synergon.records import ClaimRequest, Look
from synergon.stores.allotting import Allotment
from synergon.stores.leaving import MOST_LEFT, Elsewhere, sought
from synergon.stores.postgres.choosing import Contender, contender
from synergon.stores.postgres.commands import ready_commands
from synergon.stores.postgres.covering import Covering, limits_above, providers_of
from synergon.stores.postgres.lanes import Lanes
from synergon.stores.postgres.session import Session
from synergon.stores.weighing import demand_of, is_suitable


async def looks_elsewhere(
    session: Session, asked: ClaimRequest, rest: ClaimRequest, lanes: Lanes, covering: Covering
) -> list[Look]:
    """Where to look before something is taken of the rest, of which there is something. The limits and servers of what
    may be seen there have a say, too: they are locked with the others."""
    if not asked.rivals:
        return []
    above = await limits_above(session, providers_of(rest.rooms), covering)
    ours = [(room, text) for room in rest.rooms for text in lanes.demands.get(room.kind, ())]
    return sought(asked, ours, is_covered=bool(above))


async def seen_elsewhere(
    session: Session, looks: Sequence[Look], request: ClaimRequest, allotment: Allotment
) -> list[Elsewhere]:
    """What is there. Where there is no place for anything, there is none to leave, either."""
    if not looks or all(allotment.most(room) <= 0 for room in request.rooms):
        return []
    commands = {look.room.kind: look.room for look in looks if look.room.is_command}
    found = await ready_commands(session, request, commands.values(), allotment, limit=MOST_LEFT)
    kinds = sorted({look.room.kind for look in looks} - commands.keys())
    if kinds:
        found += map(contender, await session.rows("ready_elsewhere", kinds, MOST_LEFT))
    return [one for look in looks for one in _of(look, found)]


def _of(look: Look, found: Iterable[Contender]) -> list[Elsewhere]:
    suited = [
        Elsewhere(look.room, one.candidate, one.queue, one.demand)
        for one in found
        if one.candidate.kind == look.room.kind
        and (look.room.is_command or look.queues is None or one.queue in look.queues)
        and is_suitable(demand_of(look.room, one.demand), look.labels, look.totals)
    ]
    return sorted(suited, key=lambda one: one.place)[: look.limit]
