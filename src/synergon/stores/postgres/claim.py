"""The claim of the PostgreSQL store: chooses between its fast path (`claim_fast`) and the rule (`claim_limited`).

The fast path is one statement and one round trip. The rule takes several, and is needed only if limits, servers,
requirements or a reservation decide.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Any, Final

from msgspec.structs import replace

from synergon.model.claims import ClaimRequest, Claims
from synergon.stores.postgres.claim_fast import FastClaim, Run
from synergon.stores.postgres.claim_limited import claim_limited
from synergon.stores.postgres.permit_locks import Covering, lock_limits
from synergon.stores.postgres.profile import Profile
from synergon.stores.postgres.session import Session
from synergon.stores.rows import ClaimableGroups
from synergon.stores.rules.claim import rejected, without_idle_kinds

REMEMBERED_SECONDS: Final = 10.0
"""For how long a kind that had tasks with requirements of their own is claimed by the rule."""

MANY: Final = 50
"""From this number of tasks on the shorter statement pays, although it sometimes finds nothing."""


class Claimer:
    """Claims for the nodes of one process.

    Before the rule runs, the ready groups are read without locks. If they show that slots alone decide, the fast path
    is used after all. The fast path has a shorter statement for requests of one kind, as after a hint, and for large
    requests as long as there are more ready tasks than requested.
    """

    def __init__(self, profile: Profile, write: Run, statement: Run) -> None:
        self._profile = profile
        self._has_left_some = False
        """Whether the last claim took as many tasks as were requested, so that more are likely."""
        self._write = write
        self._statement = statement
        self._covering: Covering = {}
        self._with_requirements: dict[str, float] = {}
        """Until when each kind is assumed to have tasks with requirements of their own."""

    async def claim(self, request: ClaimRequest) -> Claims:
        """Claim ready tasks, with one statement if only the node's slots decide."""
        return await self._claim(request, self._write, self._statement)

    async def lock(self, session: Session, request: ClaimRequest, keyed_kinds: Collection[str]) -> None:
        """Lock, in the lock order, the rows that the claim of an exchange needs, and the key queues of these kinds."""
        session.locked_limits = await lock_limits(session, request.kinds, self._covering, keyed_kinds)

    async def claim_within(self, session: Session, request: ClaimRequest) -> Claims:
        """`claim` inside a transaction that is under way."""

        async def run(work: Run, *arguments: Any) -> Any:
            return await work(session, *arguments)

        return await self._claim(request, run, run)

    async def _claim(self, request: ClaimRequest, write: Run, statement: Run) -> Claims:
        if request.needs_only_slots(request.kinds) and not self._is_remembered(request):
            found = await self._claim_fast(_capped_by_processes(request), statement)
            if not found.with_requirements:
                return found.claims
            self._remember(found.with_requirements)
        return await self._claim_by_rule(request, write, statement)

    async def _claim_fast(self, request: ClaimRequest, statement: Run) -> FastClaim:
        found = FastClaim(Claims())
        is_short = len(request.kinds) == 1 or (self._has_left_some and _is_for_many(request))
        if self._profile.claim_by_short_statement is not None and is_short:
            found = FastClaim(await self._profile.claim_by_short_statement(statement, request))
        if not found.claims:  # there is nothing any more, or something is in the way, which this one tells
            found = await self._profile.claim(statement, request)
        self._has_left_some = len(found.claims) >= request.limit
        return found

    async def _claim_by_rule(self, request: ClaimRequest, write: Run, statement: Run) -> Claims:
        found: ClaimableGroups = await statement(_groups, request)
        if found.is_cordoned is not False:
            return rejected(request.node_id, is_cordoned=found.is_cordoned)
        with_requirements = {kind for kind, _, requirements in found.groups if requirements}
        self._remember(with_requirements)
        rest = without_idle_kinds(request, found.groups)
        if not rest.kinds and rest.reserved_task is None:
            return Claims()
        if rest.needs_only_slots(rest.kinds) and not with_requirements:
            plain = await self._claim_fast(_capped_by_processes(rest), statement)
            if not plain.with_requirements:
                return plain.claims
            # Tasks with requirements came after the groups were read, and nothing was taken: read the groups again.
            self._remember(plain.with_requirements)
            return await self._claim_by_rule(request, write, statement)
        return await claim_limited(write, statement, request, found.groups, self._covering)

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


def _is_for_many(request: ClaimRequest) -> bool:
    """Whether the request is for many tasks, and each of its kinds may supply all of them."""
    return request.limit >= MANY and all(kind_request.count >= request.limit for kind_request in request.kinds)


def _capped_by_processes(request: ClaimRequest) -> ClaimRequest:
    """The request for the fast path: each count of a kind in child processes is limited to the free child processes."""
    if not any(kind_request.is_process for kind_request in request.kinds):
        return request
    return replace(
        request,
        kinds=tuple(
            replace(kind_request, count=request.most_without_requirements(kind_request))
            for kind_request in request.kinds
        ),
    )
