"""What only other nodes could take: a claim looks at it where it may be better than what it takes itself."""

from __future__ import annotations

from collections.abc import Sequence

from synergon.records import ClaimRequest, Look
from synergon.stores.allotting import Allotment
from synergon.stores.leaving import MOST_LEFT, Elsewhere, seen, sought
from synergon.stores.postgres.commands import ready_commands
from synergon.stores.postgres.covering import Covering, limits_above, providers_of
from synergon.stores.postgres.lanes import Lanes, look
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
    tasks = [sight for sight in looks if not sight.room.is_command]
    found = [seen(sight, task) for sight in tasks for task in await look(session, sight)]
    return [*await _commands(session, looks, request, allotment), *found]


async def _commands(
    session: Session, looks: Sequence[Look], request: ClaimRequest, allotment: Allotment
) -> list[Elsewhere]:
    rooms = {look.room.kind: look.room for look in looks if look.room.is_command}
    found = await ready_commands(session, request, rooms.values(), allotment, limit=MOST_LEFT) if rooms else []
    return [
        Elsewhere(look.room, one.candidate, one.queue, one.demand)
        for look in looks
        for one in found
        if one.candidate.kind == look.room.kind
        and is_suitable(demand_of(look.room, one.demand), look.labels, look.totals)
    ]
