"""Which way a claim goes: the fast path, or the rule where limits, servers or requirements have a say."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Any, Final

from msgspec.structs import replace

from synergon.model.claims import ClaimRequest, Claims
from synergon.stores.postgres.claim_fast import AtOnce, Run
from synergon.stores.postgres.claim_limited import claim_limited
from synergon.stores.postgres.permit_locks import Covering, lock_limits
from synergon.stores.postgres.profile import Profile
from synergon.stores.postgres.session import Session
from synergon.stores.rules.claim import rejected, without_idle_kinds
from synergon.stores.session import ClaimableGroups

REMEMBERED_SECONDS: Final = 10.0
"""A kind that has had tasks with demands of their own is likely to have more."""

MANY: Final = 50
"""From this number on it pays to claim by the shorter statement, although it may be asked in vain."""


class Claimer:
    """Claims for the nodes of one process.

    Before the rule runs, the ready groups are read without locks; if nothing but numbers decides among them, the fast
    path is taken after all. The fast path has a shorter statement for requests of one kind, as they are when a task has
    just come, and for as long as there are more tasks than are asked for.
    """

    def __init__(self, profile: Profile, write: Run, statement: Run) -> None:
        self._profile = profile
        self._has_left_some = False
        """The last claim took as many as it asked for."""
        self._write = write
        self._statement = statement
        self._covering: Covering = {}
        self._with_requirements: dict[str, float] = {}
        """Until when each of these kinds is believed to have tasks that must be weighed."""

    async def claim(self, request: ClaimRequest) -> Claims:
        """Take ready tasks; in one statement if nothing but the node's slots decides how many."""
        return await self._claim(request, self._write, self._statement)

    async def lock(self, session: Session, request: ClaimRequest, keyed_kinds: Collection[str]) -> None:
        """Lock, in the one order, what a claim and the end of tasks in key queues of these kinds will need."""
        session.locked_limits = await lock_limits(session, request.kinds, self._covering, keyed_kinds)

    async def claim_within(self, session: Session, request: ClaimRequest) -> Claims:
        """`claim` inside a transaction that is under way."""

        async def run(work: Run, *arguments: Any) -> Any:
            return await work(session, *arguments)

        return await self._claim(request, run, run)

    async def _claim(self, request: ClaimRequest, write: Run, statement: Run) -> Claims:
        if request.needs_only_slots(request.kinds) and not self._is_remembered(request):
            found = await self._claim_in_numbers(_in_numbers(request), statement)
            if not found.demanding:
                return found.claims
            self._remember(found.demanding)
        return await self._claim_by_rule(request, write, statement)

    async def _claim_in_numbers(self, request: ClaimRequest, statement: Run) -> AtOnce:
        found = AtOnce(Claims())
        is_short = len(request.kinds) == 1 or (self._has_left_some and _is_for_many(request))
        if self._profile.claim_shortly is not None and is_short:
            found = AtOnce(await self._profile.claim_shortly(statement, request))
        if not found.claims:  # there is nothing any more, or something is in the way, which this one tells
            found = await self._profile.claim(statement, request)
        self._has_left_some = len(found.claims) >= request.limit
        return found

    async def _claim_by_rule(self, request: ClaimRequest, write: Run, statement: Run) -> Claims:
        found: ClaimableGroups = await statement(_groups, request)
        if found.is_cordoned is not False:
            return rejected(request.node_id, is_cordoned=found.is_cordoned)
        demanding = {kind for kind, _, requirements in found.groups if requirements}
        self._remember(demanding)
        rest = without_idle_kinds(request, found.groups)
        if not rest.kinds and rest.reserved_task is None:
            return Claims()
        if rest.needs_only_slots(rest.kinds) and not demanding:
            plain = await self._claim_in_numbers(_in_numbers(rest), statement)
            if not plain.demanding:
                return plain.claims
            # Such tasks have come since the look, and nothing was taken: the next look sees them.
            self._remember(plain.demanding)
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
    """Whether it asks for many, all of which might be of any of its kinds."""
    return request.limit >= MANY and all(kind_request.count >= request.limit for kind_request in request.kinds)


def _in_numbers(request: ClaimRequest) -> ClaimRequest:
    """The same for the short way, which knows how many of each kind, and of child processes nothing."""
    if not any(kind_request.is_process for kind_request in request.kinds):
        return request
    return replace(
        request,
        kinds=tuple(
            replace(kind_request, count=request.most_without_requirements(kind_request))
            for kind_request in request.kinds
        ),
    )
