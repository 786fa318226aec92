"""The claim of the PostgreSQL store: chooses between its fast path (`claim_fast`) and the rule (`claim_limited`).

The fast path is one statement and one round trip. The rule takes several, and is needed only if limits, servers,
requirements or a reservation decide.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Final

from synergon.model.claims import ClaimRequest, Claims
from synergon.stores.postgres.claim_fast import FastClaim
from synergon.stores.postgres.claim_limited import claim_limited
from synergon.stores.postgres.permit_locks import Covering, lock_limits
from synergon.stores.postgres.profile import Profile
from synergon.stores.postgres.session import Session
from synergon.stores.postgres.transactions import OpenTransaction, Transactions
from synergon.stores.rows import ClaimableGroups
from synergon.stores.rules.claim import rejected, without_idle_kinds

REMEMBERED_SECONDS: Final = 10.0
"""For how many seconds a kind is claimed by the rule after a ready task with requirements of its own was found."""


class Claimer:
    """Claims for the nodes of one process.

    Before the rule runs, the ready groups are read without locks. If they show that only slots decide, the fast path is
    used instead of the rule. The fast path has a shorter statement for requests of one kind, as after a hint.
    """

    def __init__(self, profile: Profile, transactions: Transactions) -> None:
        self._profile = profile
        self._transactions = transactions
        self._covering: Covering = {}
        self._with_requirements: dict[str, float] = {}
        """For each kind, until when it is assumed to have tasks with requirements of their own."""

    async def claim(self, request: ClaimRequest) -> Claims:
        """Claim ready tasks. Takes one statement if only the node's slots decide."""
        return await self._claim(request, self._transactions)

    async def lock(self, session: Session, request: ClaimRequest, keyed_kinds: Collection[str]) -> None:
        """Lock, in the lock order, the rows that the claim of an exchange needs, and the key queues of
        `keyed_kinds`."""
        session.locked_limits = await lock_limits(session, request.kinds, self._covering, keyed_kinds)

    async def claim_within(self, session: Session, request: ClaimRequest) -> Claims:
        """`claim` inside an open transaction."""
        return await self._claim(request, OpenTransaction(session))

    async def _claim(self, request: ClaimRequest, transactions: Transactions) -> Claims:
        plain = None if self._is_remembered(request) else request.by_slots_alone(request.kinds)
        if plain is not None:
            found = await self._claim_fast(plain, transactions)
            if not found.with_requirements:
                return found.claims
            self._remember(found.with_requirements)
        return await self._claim_by_rule(request, transactions)

    async def _claim_fast(self, request: ClaimRequest, transactions: Transactions) -> FastClaim:
        found = FastClaim(Claims())
        if self._profile.claim_one_kind is not None and len(request.kinds) == 1:
            found = FastClaim(await self._profile.claim_one_kind(transactions, request))
        if not found.claims:  # no task is ready, or something prevents the claim: this statement reports which
            found = await self._profile.claim(transactions, request)
        return found

    async def _claim_by_rule(self, request: ClaimRequest, transactions: Transactions) -> Claims:
        found = await transactions.statement(_groups, request)
        if found.is_cordoned is not False:
            return rejected(request.node_id, is_cordoned=found.is_cordoned)
        with_requirements = {kind for kind, _, requirements in found.groups if requirements}
        self._remember(with_requirements)
        rest = without_idle_kinds(request, found.groups)
        if not rest.kinds and rest.reserved_task is None:
            return Claims()
        plain = None if with_requirements else rest.by_slots_alone(rest.kinds)
        if plain is not None:
            at_once = await self._claim_fast(plain, transactions)
            if not at_once.with_requirements:
                return at_once.claims
            # Tasks with requirements came after the groups were read, and nothing was taken: read the groups again.
            self._remember(at_once.with_requirements)
            return await self._claim_by_rule(request, transactions)
        return await claim_limited(transactions, request, found.groups, self._covering)

    def _is_remembered(self, request: ClaimRequest) -> bool:
        if not self._with_requirements:
            return False
        now = time.monotonic()
        self._with_requirements = {kind: until for kind, until in self._with_requirements.items() if until > now}
        return any(kind_request.kind in self._with_requirements for kind_request in request.kinds)

    def _remember(self, kinds: Iterable[str]) -> None:
        self._with_requirements.update(dict.fromkeys(kinds, time.monotonic() + REMEMBERED_SECONDS))


async def _groups(session: Session, request: ClaimRequest) -> ClaimableGroups:
    return await session.ready.groups(request)
