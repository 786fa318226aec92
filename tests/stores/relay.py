"""Tasks that follow one another with the same permit."""

from __future__ import annotations

from typing import Any, Final

from tests.stores.actions import OUTCOMES, Worker, add_many, declare_limit, declare_pool, settlement_of

from synergon.model.claims import Claim, ClaimRequest, Claims, KindRequest
from synergon.model.lifecycle import State
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.stores.base import Store

LICENSED: Final = KindRequest(kind="licensed", count=3, limits=("license",))
SERVED: Final = KindRequest(kind="served", count=3, provider="gpu")
KEYED: Final = KindRequest(kind="keyed", count=3)
KEYED_AND_SERVED: Final = KindRequest(kind="keyed", count=3, provider="gpu")
KEYED_AND_LICENSED: Final = KindRequest(kind="keyed", count=3, limits=("license",))
SORTS: Final = {
    "a limit": LICENSED,
    "a server": SERVED,
    "a key queue": KEYED,
    "a key queue and a server": KEYED_AND_SERVED,
    "a key queue and a limit": KEYED_AND_LICENSED,
}


class Relay:
    """Tasks of which one may run at a time: the first of them runs, the others wait."""

    def __init__(self, store: Store, worker: Worker, kind: KindRequest, ids: list[int], claim: Claim) -> None:
        self.store = store
        self.worker = worker
        self.kind = kind
        self.ids = ids
        self.claim = claim

    @classmethod
    async def begin(cls, store: Store, kind: KindRequest, number: int = 3) -> Relay:
        worker = await Worker.start(store)
        await declare_limit(store, "license", 1)
        await declare_limit(store, "key:keyed", 1)
        await declare_pool(store, a=1)
        ids = await add_many(store, number, kind=kind.kind, limit_key="one" if kind.kind == "keyed" else None)
        (claim,) = await worker.claim_kinds(kind)
        return cls(store, worker, kind, ids, claim)

    @property
    def outcome(self) -> FencedOutcome:
        return succeeded(self.claim)

    def request(self, *kinds: KindRequest, **more: Any) -> ClaimRequest:
        return ClaimRequest(node_id=self.worker.node_id, kinds=kinds or (self.kind,), **{"limit": 3, **more})

    async def exchange(self, *kinds: KindRequest, **more: Any) -> tuple[Verdict, Claims]:
        """End the task that runs, and claim."""
        (verdict,), claims = await self.store.exchange([self.outcome], self.request(*kinds, **more))
        return verdict, claims

    async def next(self, *kinds: KindRequest, **more: Any) -> list[int]:
        """End the task that runs with success; the tasks that start with the same call."""
        verdict, claims = await self.exchange(*kinds, **more)
        assert verdict.state is State.SUCCEEDED
        if claims:
            self.claim = claims[0]
        return [claim.id for claim in claims]


def succeeded(claim: Claim) -> FencedOutcome:
    """The success of a claim, as a node tells it."""
    server = ("gpu", claim.server) if claim.server is not None else None
    return settlement_of(claim, OUTCOMES["succeeded"], server=server, slot=claim.slot)
