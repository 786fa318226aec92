"""The claim by the rule (`rules.claim`) in a transaction of PostgreSQL.

In the distributed profile, statements neither wait for a locked row nor skip it, but raise. A claim that meets such a
row is repeated, and after some attempts excludes the locked rows.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from typing import Final

from synergon.model.claims import ClaimRequest, Claims
from synergon.stores.contention import RowHeld
from synergon.stores.postgres.permit_locks import Covering
from synergon.stores.postgres.ready_rows import ClaimState
from synergon.stores.postgres.session import Session
from synergon.stores.postgres.transactions import Transactions
from synergon.stores.rules import claim as rule
from synergon.stores.rules.claim_plan import ReadyGroupName

TRIES: Final = 8
TRIES_BEFORE_PROBING: Final = 3
"""How often a claim is repeated unchanged: most locks belong to other claims, which take milliseconds. After that, the
claim searches for the locked rows and excludes them."""
MOST_PROBES: Final = 64
PAUSE_SECONDS: Final = 0.01


async def claim_limited(
    transactions: Transactions, request: ClaimRequest, groups: Collection[ReadyGroupName], covering: Covering
) -> Claims:
    """Run `rules.claim.claim` in a transaction. `covering` has the limits that earlier claims found to cover
    servers."""
    held: set[int] = set()
    for number in range(TRIES):
        tried: list[int] = []
        try:
            claims = await transactions.write(_claim, request, groups, covering, held, tried)
        except RowHeld:
            await asyncio.sleep(PAUSE_SECONDS * random.random())
            if number >= TRIES_BEFORE_PROBING:
                held |= await _find_held(transactions, tried)
        else:
            return claims
    return Claims()


async def _claim(
    session: Session,
    request: ClaimRequest,
    groups: Collection[ReadyGroupName],
    covering: Covering,
    held: Collection[int],
    tried: list[int],
) -> Claims:
    session.claim = ClaimState(covering, held, tried)
    return await rule.claim(session, request, groups)


async def _find_held(transactions: Transactions, ids: Sequence[int]) -> set[int]:
    held: set[int] = set()
    for task_id in ids[:MOST_PROBES]:
        try:
            await transactions.statement(_probe, task_id)
        except RowHeld:
            held.add(task_id)
    return held


async def _probe(session: Session, task_id: int) -> None:
    await session.rows("lock_ready", task_id)
