"""What ends a task lets the next one start in the same step: the statement that ends it passes its place on.

Only where that is as simple as it mostly is: one task has succeeded, one kind may take its place, and the first of that
kind may do so as it is. Everything else is left to a claim of its own, which weighs it. One ends and one starts, so
nothing is taken that was not in use before, and nothing has to be counted against others who take places meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from synergon.demands import NOTHING
from synergon.lifecycle import State
from synergon.records import ClaimRequest, Claims, Room, Settlement, Verdict
from synergon.stores.postgres.claiming import Run, in_order, queues_of
from synergon.stores.postgres.session import Session
from synergon.stores.postgres.succeeding import are_plain, columns

Finish = Callable[[Sequence[Settlement]], Awaitable[list[Verdict]]]


class Passing(NamedTuple):
    """A task that has succeeded, and who may take its place."""

    settlement: Settlement
    request: ClaimRequest
    room: Room


async def pass_on(
    statement: Run, finish: Finish, settlement: Settlement, request: ClaimRequest
) -> tuple[Verdict, Claims | None]:
    """Settle a task and take the one that follows it; None: who that is has to be found out yet."""
    passing = _passing(settlement, request)
    row = await statement(_pass_on, passing) if passing is not None else None
    if passing is None or row is None:
        return (await finish([settlement]))[0], None
    verdict = Verdict(settlement.id, State.SUCCEEDED, (), settlement.kind)
    return verdict, in_order([passing.room], [row]) if row["id"] is not None else None


def _passing(settlement: Settlement, request: ClaimRequest) -> Passing | None:
    """None: nobody can take the place before it is weighed who."""
    rooms = [room for room in request.rooms if not room.is_command]
    is_simple = (
        len(rooms) == 1
        and rooms[0].kind == settlement.kind
        and request.limit > 0
        and request.kept_for is None
        and are_plain([settlement])
        and _is_plain(rooms[0])
        and _has_place(settlement, rooms[0])
    )
    return Passing(settlement, request, rooms[0]) if is_simple else None


def _is_plain(room: Room) -> bool:
    return room.only is None and not room.is_rated and not room.is_urgent and room.demand == NOTHING


def _has_place(settlement: Settlement, room: Room) -> bool:
    """In a line, or in limits and on a server; not in both, for then it may be another line's turn."""
    if settlement.limit_key is not None:
        return not room.limits and room.provider is None
    if room.provider is None:
        return bool(room.limits)
    return settlement.server is not None and settlement.slot is not None


async def _pass_on(session: Session, passing: Passing) -> Any:
    """What has become of both, in one row; None: nothing."""
    settlement, request, room = passing
    ends = (*columns([settlement]), session.shard, True)
    asks = (request.node_id, room.kind, queues_of(request))
    if settlement.limit_key is not None:
        return await session.row("pass_place", *ends, *asks, settlement.limit_key)
    return await session.row("pass_seat", *ends, *asks, *_seat(settlement, room), _commands(request))


def _seat(settlement: Settlement, room: Room) -> tuple[Any, ...]:
    """What the task has held, and the next one will."""
    limits = (list(room.limits), "\n".join(room.limits))
    if room.provider is None or settlement.server is None:
        return (*limits, None, None, None)
    return (*limits, *settlement.server, settlement.slot)


def _commands(request: ClaimRequest) -> list[str]:
    return [room.kind for room in request.rooms if room.is_command]
