"""Claims without stepping over locked rows: look, take what is still there, and look again for what others took.

The guard is in the statement that takes. Two claimers may look at the same tasks; the slower one gets fewer of them, or
none, and looks again, so that it does not go idle beside ready work. How often is bounded: after that a sweep or a hint
goes on. A row that somebody holds for long (a caller's own transaction may) is found by halving, and passed over.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from synergon.errors import StoreError
from synergon.records import Claim, ClaimRequest, Room
from synergon.stores.postgres.claiming import Run, in_order, lease_lost
from synergon.stores.postgres.contention import RowHeld
from synergon.stores.postgres.session import Session

LOOKS: Final = 8
PATIENT_LOOKS: Final = 3
"""Whoever holds a row is a claimer too, most likely, and gone at the next look; only then it is worth halving."""
PAUSE_SECONDS: Final = 0.01
MOST_REFUSALS: Final = 64
"""How often a claim halves, whatever is held."""


async def claim_by_contest(run: Run, request: ClaimRequest) -> list[Claim]:
    """Take the first ready tasks in order, as many as the request has room for and others leave."""
    contest = _Contest(run, request)
    try:
        for number in range(LOOKS):
            if await contest.has_taken_what_it_saw(halves=number >= PATIENT_LOOKS):
                break
    except StoreError:
        if not contest.taken:  # what is taken is this node's, and nobody else would run it
            raise
    return in_order(contest.taken)


class _Contest:
    """One claim, over several looks."""

    def __init__(self, run: Run, request: ClaimRequest) -> None:
        self.taken: list[Any] = []
        self._run = run
        self._request = request
        self._held: set[int] = set()
        self._refusals = 0

    async def has_taken_what_it_saw(self, *, halves: bool) -> bool:
        """Look and take once; False: others were quicker, and there may be more."""
        ids = await self._run(_look, self._rest(), sorted(self._held))
        before, refusals = len(self.taken), self._refusals
        if ids:
            await self._take(ids, halves=halves)
        if self._refusals > refusals:
            await asyncio.sleep(PAUSE_SECONDS * random.random())
        return len(self.taken) - before == len(ids)

    def _rest(self) -> ClaimRequest:
        """What there is still room for."""
        by_kind = Counter(row["kind"] for row in self.taken)
        rooms = tuple(Room(kind=room.kind, count=room.count - by_kind[room.kind]) for room in self._request.rooms)
        return msgspec.structs.replace(self._request, rooms=rooms, limit=self._request.limit - len(self.taken))

    async def _take(self, ids: Sequence[int], *, halves: bool) -> None:
        try:
            self.taken += await self._run(_take, self._request, ids)
        except RowHeld:
            self._refusals += 1
            if halves:
                await self._take_halves(ids)

    async def _take_halves(self, ids: Sequence[int]) -> None:
        if len(ids) == 1 or self._refusals >= MOST_REFUSALS:
            self._held.update(ids)
            return
        middle = len(ids) // 2
        for half in (ids[:middle], ids[middle:]):
            await self._take(half, halves=True)


async def _look(session: Session, request: ClaimRequest, held: Sequence[int]) -> list[int]:
    rows = await session.rows(
        "candidates",
        request.node_id,
        [room.kind for room in request.rooms],
        [room.count for room in request.rooms],
        request.limit,
        _queues(request),
        min(request.limit, max((room.count for room in request.rooms), default=0)),
        held,
    )
    if not rows[0][0]:
        raise lease_lost(request.node_id)
    return [task_id for _, task_id in rows if task_id is not None]


async def _take(session: Session, request: ClaimRequest, ids: Sequence[int]) -> list[Any]:
    return await session.rows("claim", request.node_id, ids, _queues(request))


def _queues(request: ClaimRequest) -> list[str] | None:
    return sorted(request.queues) if request.queues is not None else None
