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

from synergon.model.claims import CandidateQuery, ClaimRequest, Claims, KindRequest
from synergon.model.lifecycle import State
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.model.requirements import NO_REQUIREMENTS
from synergon.options.addresses import prefixes_of
from synergon.stores.leaving import shares_by_name, strangers
from synergon.stores.postgres.claim_fast import Run, in_order, queues_of
from synergon.stores.postgres.finish_fast import are_plain, columns
from synergon.stores.postgres.lock_order import OF_LINES
from synergon.stores.postgres.session import Session

Finish = Callable[[Sequence[FencedOutcome]], Awaitable[list[Verdict]]]

STAYS: Final = 32
"""How many tasks in a row, on the average, have the same server, although others are as good: whoever is given another
one has to be weighed."""


class Passing(NamedTuple):
    """A task that has succeeded, and who may take its place."""

    settlement: FencedOutcome
    request: ClaimRequest
    heirs: list[KindRequest]
    """They take the very same places as it did."""
    others: list[KindRequest]
    """They need something else as well."""
    strangers: list[CandidateQuery]
    """They are for other nodes."""

    @property
    def room(self) -> KindRequest:
        """What the task needed itself."""
        return next(room for room in self.heirs if room.kind == self.settlement.kind)

    @property
    def rivals(self) -> list[KindRequest]:
        """All of whom a task may be better than those of the heirs."""
        return [*self.others, *(look.room for look in self.strangers if not look.room.is_command)]

    @property
    def commands(self) -> set[str]:
        """They go before all."""
        rooms = [*self.request.kinds, *(look.room for look in self.strangers)]
        return {room.kind for room in rooms if room.is_command}

    def is_for(self, kind: str, queue: str) -> bool:
        """Whether another node could take the very same places for such a task."""
        return any(
            look.room.kind == kind
            and (look.queues is None or queue in look.queues)
            and _is_plain(look.room)
            and _are_the_same(look.room, self.room)
            for look in self.strangers
        )


async def pass_on(
    statement: Run, finish: Finish, settlement: FencedOutcome, request: ClaimRequest
) -> tuple[Verdict, Claims | None]:
    """Settle a task and take the one that follows it; None: who that is has to be found out yet."""
    passing = _passing(settlement, request)
    row = await statement(_pass_on, passing) if passing is not None else None
    if passing is None or row is None:
        return (await finish([settlement]))[0], None
    claims = in_order(passing.heirs, [row]) if row["id"] is not None else _left(passing, row)
    released = (settlement.kind,) if claims and settlement.kind and row["is_one_let_go"] else ()
    return Verdict(settlement.id, State.SUCCEEDED, (), settlement.kind, released), claims


def _left(passing: Passing, row: Any) -> Claims | None:
    """A better task of another node is left the place, if that could take it as it is; if not, or if others have not
    come for theirs before, it has to be weighed."""
    if row["better"] is None or passing.request.past:
        return None
    task_id, kind, queue = row["better"]
    if not passing.is_for(kind, queue):
        return None
    claims = Claims()
    claims.left = ((int(task_id), kind),)
    return claims


def _passing(settlement: FencedOutcome, request: ClaimRequest) -> Passing | None:
    """None: nobody can take the place before it is weighed who."""
    rooms = {room.kind: room for room in request.kinds if not room.is_command}
    own = rooms.get(settlement.kind or "")
    if own is None or not _is_plain(own) or not _has_place(settlement, own):
        return None
    heirs = [room for room in rooms.values() if _is_plain(room) and _are_the_same(room, own)]
    others = [room for room in rooms.values() if room not in heirs]
    is_simple = request.limit > 0 and request.reserved_task is None and are_plain([settlement])
    return Passing(settlement, request, heirs, others, strangers(request, [own])) if is_simple else None


def _is_plain(room: KindRequest) -> bool:
    return room.only is None and not room.is_rated and not room.is_urgent and room.requirements == NO_REQUIREMENTS


def _are_the_same(room: KindRequest, other: KindRequest) -> bool:
    """Whether they take the same places."""
    return (frozenset(room.limits), room.provider) == (frozenset(other.limits), other.provider)


def _has_place(settlement: FencedOutcome, room: KindRequest) -> bool:
    """In a line, in limits or on a server."""
    if room.provider is not None:
        return settlement.server is not None and settlement.slot is not None
    return bool(room.limits) or settlement.limit_key is not None


async def _pass_on(session: Session, passing: Passing) -> Any:
    """What has become of both, in one row; None: nothing."""
    settlement, request = passing.settlement, passing.request
    seat, rooms = _seat(settlement, passing.room), [*passing.heirs, *passing.rivals]
    is_lined = settlement.limit_key is not None
    names = {*seat.limits, *seat.above, *([f"{OF_LINES}{settlement.kind}"] if is_lined else [])}
    ends = (*columns([settlement]), session.shard)
    asks = (request.node_id, queues_of(request), sorted(names), settlement.kind, settlement.limit_key)
    if is_lined and seat.holds is None:
        return await session.row("pass_place", *ends, *asks)
    return await session.row(
        "pass_seat_in_line" if is_lined else "pass_seat",
        *ends,
        *asks,
        [room.kind for room in rooms],
        [room.rank for room in rooms],
        *(seat.holds, seat.provider, seat.address, seat.slot, sorted(seat.above)),
        sorted(passing.commands),
        random.randrange(STAYS) == 0,
        [number < len(passing.heirs) for number in range(len(rooms))],
        [None if shares_by_name(room, [passing.room]) else room.provider for room in rooms],
        [room.is_urgent for room in rooms],
    )


class PassedSeat(NamedTuple):
    """What the task has held, and the next one will."""

    limits: tuple[str, ...]
    provider: str | None = None
    address: str | None = None
    slot: int | None = None

    @property
    def holds(self) -> str | None:
        """As it is written down; None: nothing."""
        return "\n".join(self.limits) if self.limits or self.provider is not None else None

    @property
    def above(self) -> frozenset[str]:
        """The names of all limits that would cover the server."""
        return frozenset() if self.address is None else prefixes_of(self.address)


def _seat(settlement: FencedOutcome, room: KindRequest) -> PassedSeat:
    if room.provider is None or settlement.server is None:
        return PassedSeat(room.limits)
    return PassedSeat(room.limits, *settlement.server, settlement.slot)
