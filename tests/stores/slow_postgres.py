"""A PostgreSQL store that dawdles between its statements, so that whatever can come between them does.

Run as `python -m tests.stores.slow_postgres URL NODE_ID`: a process that claims and finishes under all kinds of limits
until nothing is left.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tests.stores.actions import Worker, settlement_of

from synergon.model.claims import Claim, ClaimRequest, KindRequest
from synergon.model.outcomes import FencedOutcome, Succeeded
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.session import Session

PAUSE_SECONDS: Final = 0.004
ROOMS: Final = (
    KindRequest(kind="served", count=5, provider="gpu"),
    KindRequest(kind="named", count=5, limits=("license",)),
    KindRequest(kind="lined", count=5),
    KindRequest(kind="both", count=5, limits=("license",), provider="gpu"),
    KindRequest(kind="named alike", count=5, limits=("license",)),
    KindRequest(kind="covered", count=5, provider="web"),
    KindRequest(kind="covered line", count=5, provider="web"),
)


class SlowSession(Session):
    """Dawdles after each statement: after a lock, after a count, after a write."""

    __slots__ = ()

    async def rows(self, name: str, *parameters: Any) -> list[Any]:
        """All rows of the named statement."""
        rows = await super().rows(name, *parameters)
        await asyncio.sleep(random.random() * PAUSE_SECONDS)
        return rows

    async def run(self, name: str, *parameters: Any) -> int:
        """Run the named statement."""
        changed = await super().run(name, *parameters)
        await asyncio.sleep(random.random() * PAUSE_SECONDS)
        return changed


class SlowStore(PostgresStore):
    """The store itself; `is_proud`: it does nothing again that was undone because two waited for each other."""

    def __init__(self, url: str, *, is_proud: bool = False) -> None:
        super().__init__(url)
        if is_proud:
            self._profile = replace(self._profile, contention_pauses=())

    def _session(self, connection: Any) -> Session:
        return SlowSession(connection, self._profile, self._sql, self._shard)


def settled(claim: Claim) -> FencedOutcome:
    """A success, of its server too."""
    (provider,) = (kind_request.provider for kind_request in ROOMS if kind_request.kind == claim.kind)
    server = (provider, claim.server) if provider is not None and claim.server is not None else None
    return settlement_of(claim, Succeeded(), server=server, slot=claim.slot)


def alike(kind: str) -> list[KindRequest]:
    """The kinds that need the same permits."""
    (one,) = (kind_request for kind_request in ROOMS if kind_request.kind == kind)
    return [
        kind_request
        for kind_request in ROOMS
        if (kind_request.limits, kind_request.provider) == (one.limits, one.provider)
    ]


async def is_done(store: PostgresStore) -> bool:
    """Whether everything has ended."""
    return all(state.is_final for _, _, state in await store.counts())


async def drain(url: str, node_id: str) -> None:
    """Until everything has ended."""
    store = SlowStore(url)
    await store.open()
    worker = await Worker.start(store, node_id)
    while not await is_done(store):
        # Now this kind, now that: who asks for everything waits for everybody, and would hide a lock that is missing.
        kind_requests = random.choice([alike, _a_few])(random.choice(ROOMS).kind)
        claims = await worker.claim_kinds(*kind_requests, limit=8)
        if claims:
            await worker.store.finish([settled(claim) for claim in claims[4:]])
            await exchange(worker, claims[:4], kind_requests)
    await store.close()


def _a_few(kind: str) -> list[KindRequest]:
    return [kind_request for kind_request in ROOMS if kind_request.kind == kind or random.random() < 0.1]


async def exchange(worker: Worker, claims: Sequence[Claim], kind_requests: Sequence[KindRequest]) -> None:
    """From one to the next, until nothing follows here."""
    request = ClaimRequest(node_id=worker.node_id, kinds=tuple(kind_requests), limit=random.randint(1, 8))
    while claims:
        _, claims = await worker.store.exchange([settled(claim) for claim in claims], request)


if __name__ == "__main__":
    asyncio.run(drain(*sys.argv[1:]))
