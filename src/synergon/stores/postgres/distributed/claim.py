"""The fast path of the claim for databases that cannot skip locked rows: read candidates, claim those that are still
ready, and repeat if other claims have taken some.

The statement that claims tasks guards their state. Two claims may read one task; the later one does not get it and
reads again, so that a node does not stay idle while tasks are ready. The number of repetitions is bounded; after that,
tasks wait for the next sweep or hint. Rows that another transaction holds for long are found by bisection, and skipped.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from synergon.errors import StoreError
from synergon.model.claims import ClaimRequest
from synergon.stores.contention import RowHeld
from synergon.stores.postgres.claim_fast import FastClaim, in_order, queues_of, rejected_by
from synergon.stores.postgres.session import Session
from synergon.stores.postgres.transactions import Transactions

MAX_ROUNDS: Final = 8
ROUNDS_BEFORE_BISECTION: Final = 3
"""How often a claim is repeated before it bisects: most locks belong to other claims, which take milliseconds."""
PAUSE_SECONDS: Final = 0.01
MOST_REJECTIONS: Final = 64
"""How many statements of one claim may fail on locked rows before the claim stops bisecting."""


async def claim_optimistically(transactions: Transactions, request: ClaimRequest) -> FastClaim:
    """Claim the first ready tasks in claim order that other claims have not taken, at most as many as the request
    allows."""
    contest = _OptimisticClaim(transactions, request)
    try:
        for number in range(MAX_ROUNDS):
            if await contest.took_all_candidates(halves=number >= ROUNDS_BEFORE_BISECTION):
                break
    except StoreError:
        if not contest.taken:  # the tasks taken so far belong to this node and must be run
            raise
    if contest.taken or contest.is_open:
        return FastClaim(
            in_order(request.kinds, contest.taken), frozenset() if contest.taken else contest.with_requirements
        )
    return FastClaim(rejected_by(request.node_id, is_open=contest.is_open))


class _OptimisticClaim:
    """One claim, over several repetitions."""

    def __init__(self, transactions: Transactions, request: ClaimRequest) -> None:
        self.taken: list[Any] = []
        self.is_open: bool | None = True
        self.with_requirements: frozenset[str] = frozenset()
        self._transactions = transactions
        self._request = request
        self._held: set[int] = set()
        self._rejections = 0

    async def took_all_candidates(self, *, halves: bool) -> bool:
        """Read candidates and claim them, once. False if other claims took some of them, so that more tasks may be
        ready."""
        rows = await self._transactions.statement(_read_candidates, self._remaining_request(), sorted(self._held))
        self.is_open, self.with_requirements = rows[0]["is_open"], frozenset(rows[0]["with_requirements"])
        ids = [row["id"] for row in rows if row["id"] is not None] if self.is_open else []
        before, rejections = len(self.taken), self._rejections
        if ids:
            await self._take(ids, halves=halves)
        if self._rejections > rejections:
            await asyncio.sleep(PAUSE_SECONDS * random.random())
        return len(self.taken) - before == len(ids)

    def _remaining_request(self) -> ClaimRequest:
        """The request, reduced by the tasks that are claimed already."""
        by_kind = Counter(row["kind"] for row in self.taken)
        kind_requests = tuple(
            replace(kind_request, count=kind_request.count - by_kind[kind_request.kind])
            for kind_request in self._request.kinds
        )
        return replace(self._request, kinds=kind_requests, limit=self._request.limit - len(self.taken))

    async def _take(self, ids: Sequence[int], *, halves: bool) -> None:
        try:
            self.taken += await self._transactions.statement(_take, self._request, ids)
        except RowHeld:
            self._rejections += 1
            if halves:
                await self._take_halves(ids)

    async def _take_halves(self, ids: Sequence[int]) -> None:
        if len(ids) == 1 or self._rejections >= MOST_REJECTIONS:
            self._held.update(ids)
            return
        middle = len(ids) // 2
        for half in (ids[:middle], ids[middle:]):
            await self._take(half, halves=True)


async def _read_candidates(session: Session, request: ClaimRequest, held: Sequence[int]) -> list[Any]:
    return await session.rows(
        "candidates",
        request.node_id,
        [kind_request.kind for kind_request in request.kinds],
        [kind_request.count for kind_request in request.kinds],
        request.limit,
        queues_of(request),
        min(request.limit, max((kind_request.count for kind_request in request.kinds), default=0)),
        held,
        [kind_request.rank for kind_request in request.kinds],
    )


async def _take(session: Session, request: ClaimRequest, ids: Sequence[int]) -> list[Any]:
    return await session.rows("claim", request.node_id, ids, queues_of(request))
