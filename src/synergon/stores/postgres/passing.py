"""What ends a task lets the next one start in the same step: its place is passed on by the transaction that ends it.

Only where that is as simple as it mostly is: one task has succeeded, one kind may take its place, and the first of that
kind may do so as it is. Everything else is left to a claim of its own, which weighs it. The locks and their order are
those of a claim and of an outcome, so the one that is taken is counted like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from synergon.addresses import covers
from synergon.demands import NOTHING
from synergon.records import ClaimRequest, Claims, Room, Settlement, Verdict
from synergon.stores.postgres import settling, succeeding
from synergon.stores.postgres.claiming import Run, in_order, queues_of
from synergon.stores.postgres.consequences import draw
from synergon.stores.postgres.locking import lock_lines
from synergon.stores.postgres.session import Session


class Passing(NamedTuple):
    """A task that has succeeded, and who may take its place."""

    settlement: Settlement
    request: ClaimRequest
    room: Room


def passing_of(settlement: Settlement, request: ClaimRequest) -> Passing | None:
    """None: it takes a claim of its own to find out who is next."""
    rooms = [room for room in request.rooms if not room.is_command]
    is_simple = (
        succeeding.are_plain([settlement])
        and len(rooms) == 1
        and rooms[0].kind == settlement.kind
        and request.limit > 0
        and request.kept_for is None
        and _is_plain(rooms[0])
        and _has_place(settlement, rooms[0])
    )
    return Passing(settlement, request, rooms[0]) if is_simple else None


def _is_plain(room: Room) -> bool:
    return room.only is None and not room.is_rated and not room.is_urgent and room.demand == NOTHING


def _has_place(settlement: Settlement, room: Room) -> bool:
    """A place in a line, or in limits and on a server; not in both, for then it may be another line's turn."""
    if settlement.limit_key is not None:
        return not room.limits and room.provider is None
    if room.provider is None:
        return bool(room.limits)
    return settlement.server is not None and settlement.slot is not None


async def pass_on(write: Run, passing: Passing) -> tuple[Verdict, Claims | None]:
    """Settle the task and take the one that follows it; None: who that is has to be found out yet."""
    ended: tuple[Verdict, Claims | None] | None = await write(
        _pass_place if passing.settlement.limit_key is not None else _pass_seat, passing
    )
    if ended is not None:
        return ended
    verdicts: Sequence[Verdict] = await write(settling.finish, [passing.settlement])
    return verdicts[0], None


# ---------------------------------------------------------------- in a line


async def _pass_place(session: Session, passing: Passing) -> tuple[Verdict, Claims | None] | None:
    """The first that waits in the line runs at once, unless others of the kind are before it, in any line."""
    kind, limit_key = passing.room.kind, passing.settlement.limit_key
    assert limit_key is not None, "it is in a line"
    await lock_lines(session, [kind])
    verdict = await succeeding.succeed_in_line(session, passing.settlement)
    if verdict is None:
        return None
    terms = session.terms[kind]
    if terms.value is not None and terms.rate is None:
        request = passing.request
        rows = await session.rows("take_place", request.node_id, kind, limit_key, queues_of(request), terms.value)
        if rows:
            return verdict, _taken(passing, rows)
    session.touch(kind, limit_key)
    await draw(session)
    return verdict, None


# ---------------------------------------------------------------- in limits and on a server


async def _pass_seat(session: Session, passing: Passing) -> tuple[Verdict, Claims | None] | None:
    """The first ready one of the kind has the same places from now on, if they are places still."""
    settlement, room = passing.settlement, passing.room
    if room.limits:
        await session.rows("lock_limits", sorted(room.limits))
    capacity = await _lock_server(session, settlement) if room.provider is not None else UNASKED
    verdict = await succeeding.succeed_at_once(session, settlement)
    if verdict is None:
        return None
    rows = await _take_seat(session, passing, capacity) if capacity is not None else []
    return verdict, _taken(passing, rows) if rows else None


class Capacity(NamedTuple):
    """How many a server may have; None: as many as there are."""

    value: int | None = None


UNASKED = Capacity()


async def _lock_server(session: Session, settlement: Settlement) -> Capacity | None:
    """None: it has left, or something else than its capacity has a say."""
    assert settlement.server is not None, "it was given one"
    row = await session.row("lock_server", *settlement.server)
    if row is None or row["is_ailing"]:
        return None
    is_covered = any(covers(prefix, settlement.server[1]) for prefix in row["prefixes"])
    return None if is_covered else Capacity(row["capacity"])


async def _take_seat(session: Session, passing: Passing, capacity: Capacity) -> list[Any]:
    settlement, request, room = passing
    provider, server = settlement.server if room.provider is not None and settlement.server else (None, None)
    return await session.rows(
        "take_seat",
        request.node_id,
        room.kind,
        queues_of(request),
        list(room.limits),
        [_essence(name) for name in room.limits],
        "\n".join(room.limits),
        provider,
        server,
        settlement.slot if provider is not None else None,
        capacity.value,
        [other.kind for other in request.rooms if other.is_command],
    )


def _essence(limit: str) -> str:
    """What stands in the address of every server that the limit covers."""
    return limit.rpartition("://")[2].partition(":")[0]


def _taken(passing: Passing, rows: Sequence[Any]) -> Claims:
    return in_order([passing.room], rows)
