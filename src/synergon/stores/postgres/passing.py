"""What ends a task lets the next one start in the same step: the statement that ends it passes its place on.

Only where one place is as good as another: one task has succeeded, those that may follow it take the very same places,
and the first of them may do so as it is. Everything else is left to a claim of its own, which weighs it. One ends and
one starts, so nothing is taken that was not in use before, and nothing has to be counted against others who take places
meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from synergon.addresses import prefixes_of
from synergon.demands import NOTHING
from synergon.lifecycle import State
from synergon.records import ClaimRequest, Claims, Room, Settlement, Verdict
from synergon.stores.postgres.claiming import Run, in_order, queues_of
from synergon.stores.postgres.locking import OF_LINES
from synergon.stores.postgres.session import Session
from synergon.stores.postgres.succeeding import are_plain, columns

Finish = Callable[[Sequence[Settlement]], Awaitable[list[Verdict]]]

STAYS: Final = 16
"""How many tasks in a row, on the average, have the same server, although others are as good: whoever is given another
one has to be weighed."""


class Passing(NamedTuple):
    """A task that has succeeded, and who may take its place."""

    settlement: Settlement
    request: ClaimRequest
    rooms: list[Room]


async def pass_on(
    statement: Run, finish: Finish, settlement: Settlement, request: ClaimRequest
) -> tuple[Verdict, Claims | None]:
    """Settle a task and take the one that follows it; None: who that is has to be found out yet."""
    passing = _passing(settlement, request)
    row = await statement(_pass_on, passing) if passing is not None else None
    if passing is None or row is None:
        return (await finish([settlement]))[0], None
    claims = in_order(passing.rooms, [row]) if row["id"] is not None else None
    released = (settlement.kind,) if claims and settlement.kind and row["is_one_let_go"] else ()
    return Verdict(settlement.id, State.SUCCEEDED, (), settlement.kind, released), claims


def _passing(settlement: Settlement, request: ClaimRequest) -> Passing | None:
    """None: nobody can take the place before it is weighed who."""
    rooms = [room for room in request.rooms if not room.is_command]
    is_simple = (
        any(room.kind == settlement.kind for room in rooms)
        and request.limit > 0
        and request.kept_for is None
        and are_plain([settlement])
        and all(map(_is_plain, rooms))
        and len({(frozenset(room.limits), room.provider) for room in rooms}) == 1
        and _has_place(settlement, rooms[0])
    )
    return Passing(settlement, request, rooms) if is_simple else None


def _is_plain(room: Room) -> bool:
    return room.only is None and not room.is_rated and not room.is_urgent and room.demand == NOTHING


def _has_place(settlement: Settlement, room: Room) -> bool:
    """In a line, in limits or on a server."""
    if room.provider is not None:
        return settlement.server is not None and settlement.slot is not None
    return bool(room.limits) or settlement.limit_key is not None


async def _pass_on(session: Session, passing: Passing) -> Any:
    """What has become of both, in one row; None: nothing."""
    settlement, request, rooms = passing
    return await session.row(
        "pass_on",
        *columns([settlement]),
        session.shard,
        True,
        request.node_id,
        [room.kind for room in rooms],
        [room.rank for room in rooms],
        queues_of(request),
        *_places(settlement, rooms[0]),
        [room.kind for room in request.rooms if room.is_command],
        settlement.kind,
        settlement.limit_key,
        random.randrange(STAYS) == 0,
    )


def _places(settlement: Settlement, room: Room) -> tuple[Any, ...]:
    """What the task has held, and the next one will: the limits to be locked, those that it is written for, the server
    and the slot, and the limits that may cover the server."""
    provider, address = settlement.server if room.provider is not None and settlement.server else (None, None)
    above = prefixes_of(address) if address is not None else frozenset()
    line = {f"{OF_LINES}{settlement.kind}"} if settlement.limit_key is not None else set()
    holds = "\n".join(room.limits) if room.limits or provider is not None else None
    slot = settlement.slot if provider is not None else None
    return (sorted({*room.limits, *above, *line}), holds, provider, address, slot, sorted(above))
