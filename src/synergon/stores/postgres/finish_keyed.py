"""Lines close up: plain successes end, and for each of them the next of its line has a place, or starts at once.

Whoever does so goes through one of the doors of the kind (`locking.enter`), beside others who go through other doors.
One comes for one that goes, so two of them never let too many in. What either cannot see is that both want the same
last one that waits: the second finds it locked, leaves its own task of that line as it is, and settles it when all
doors are closed. So nobody is left waiting who has a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from synergon.model.claims import ClaimRequest, Claims, KindRequest
from synergon.model.lifecycle import State
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.stores.node_capacity import most_without_requirements, needs_only_slots
from synergon.stores.postgres.claim_fast import Run, in_order, queues_of
from synergon.stores.postgres.finish_fast import are_plain, columns, finish_rest
from synergon.stores.postgres.lock_order import enter, queue_up
from synergon.stores.postgres.session import Session


class ClosedUp(NamedTuple):
    """What came of it."""

    ended: frozenset[int] = frozenset()
    rows: Sequence[Any] = ()
    """What was taken."""
    let_go: int = 0
    """So many of those who follow are ready, and not taken."""


async def finish_in_lines(write: Run, settlements: Sequence[FencedOutcome]) -> list[Verdict]:
    """Settle plain successes, some of which stand in lines; those who follow are ready."""
    closed_up: ClosedUp = await write(_close_up, settlements)
    return await finish_rest(write, settlements, _verdicts(settlements, closed_up))


async def pass_all_on(
    write: Run, settlements: Sequence[FencedOutcome], request: ClaimRequest
) -> tuple[list[Verdict], Claims] | None:
    """The same, and take what is ready then; the verdicts of those that have ended so, the others are to be finished.
    None: nothing was done, because more than lines has a say, or somebody puts them in order: who waits for that should
    not keep a node from other claims, nor what was taken from its start."""
    room = _room(settlements, request)
    closed_up: ClosedUp | None = await write(_pass_on, settlements, request, room) if room is not None else None
    if room is None or closed_up is None:
        return None
    verdicts = list(_verdicts(settlements, closed_up).values())
    if verdicts and closed_up.let_go:
        verdicts[-1] = replace(verdicts[-1], released=(room.kind,) * closed_up.let_go)
    return verdicts, in_order([room], closed_up.rows)


def _room(settlements: Sequence[FencedOutcome], request: ClaimRequest) -> KindRequest | None:
    """The only one that is asked for, if nothing but its lines and numbers decides who is taken."""
    if len(request.kinds) != 1 or not needs_only_slots(request, request.kinds) or not are_plain(settlements):
        return None
    (room,) = request.kinds
    return room if _kinds(settlements) == {room.kind} and request.limit > 0 else None


def _kinds(settlements: Iterable[FencedOutcome]) -> set[str]:
    """The kinds whose lines they stand in."""
    return {entry.kind for entry in settlements if entry.kind is not None and entry.limit_key is not None}


async def _close_up(session: Session, settlements: Sequence[FencedOutcome]) -> ClosedUp:
    kinds = _kinds(settlements)
    # Who takes what is open of several kinds holds doors in no order, and must not wait for others.
    is_inside = len(kinds) == 1 and await enter(session, kinds)
    if not is_inside and not await queue_up(session, kinds):
        return ClosedUp()
    return await _succeed(session, settlements, None, None, None, None)


async def _pass_on(
    session: Session, settlements: Sequence[FencedOutcome], request: ClaimRequest, room: KindRequest
) -> ClosedUp | None:
    if not await enter(session, [room.kind]):
        return None
    number = min(request.limit, most_without_requirements(request, room))
    return await _succeed(session, settlements, request.node_id, room.kind, queues_of(request), number)


async def _succeed(session: Session, settlements: Sequence[FencedOutcome], *asks: Any) -> ClosedUp:
    first, *others = await session.rows("succeed_in_lines", *columns(settlements), session.shard, *asks)
    taken = [row for row in (first, *others) if row["id"] is not None]
    return ClosedUp(frozenset(first["ended"]), taken, first["let_go"])


def _verdicts(settlements: Iterable[FencedOutcome], closed_up: ClosedUp) -> dict[int, Verdict]:
    return {
        entry.id: Verdict(entry.id, State.SUCCEEDED, (), entry.kind)
        for entry in settlements
        if entry.id in closed_up.ended
    }
