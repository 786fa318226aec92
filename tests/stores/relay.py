"""Tasks that follow one another in the same place."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tests.stores.actions import OUTCOMES, Worker, add_many, declare_limit, declare_pool, settlement_of

from synergon.model.claims import Claim, ClaimRequest, Claims, KindRequest
from synergon.model.lifecycle import State
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.stores.base import Store

LICENSED: Final = KindRequest(kind="licensed", count=3, limits=("license",))
SERVED: Final = KindRequest(kind="served", count=3, provider="gpu")
LINED: Final = KindRequest(kind="lined", count=3)
LINED_AND_SERVED: Final = KindRequest(kind="lined", count=3, provider="gpu")
LINED_AND_LICENSED: Final = KindRequest(kind="lined", count=3, limits=("license",))
ROOMS: Final = {
    "a limit": LICENSED,
    "a server": SERVED,
    "a line": LINED,
    "a line and a server": LINED_AND_SERVED,
    "a line and a limit": LINED_AND_LICENSED,
}


class Relay:
    """Tasks that only one at a time may run: the first of them runs, the others are there."""

    def __init__(self, store: Store, worker: Worker, room: KindRequest, ids: list[int], claim: Claim) -> None:
        self.store = store
        self.worker = worker
        self.room = room
        self.ids = ids
        self.claim = claim

    @classmethod
    async def begin(cls, store: Store, room: KindRequest, number: int = 3) -> Relay:
        worker = await Worker.start(store)
        await declare_limit(store, "license", 1)
        await declare_limit(store, "key:lined", 1)
        await declare_pool(store, a=1)
        ids = await add_many(store, number, kind=room.kind, limit_key="one" if room.kind == "lined" else None)
        (claim,) = await worker.claim_rooms(room)
        return cls(store, worker, room, ids, claim)

    @property
    def settlement(self) -> FencedOutcome:
        server = ("gpu", self.claim.server) if self.claim.server is not None else None
        return settlement_of(self.claim, OUTCOMES["succeeded"], server=server, slot=self.claim.slot)

    def request(self, *rooms: KindRequest, **more: Any) -> ClaimRequest:
        return ClaimRequest(node_id=self.worker.node_id, kinds=rooms or (self.room,), **{"limit": 3, **more})

    async def pass_on(self, *rooms: KindRequest, **more: Any) -> tuple[Verdict, Claims | None]:
        return await self.store.pass_on(self.settlement, self.request(*rooms, **more))

    async def step(self, *rooms: KindRequest) -> bool:
        """Whoever is next runs, if need be by a claim; whether that was found out in the same step."""
        _, claims = await self.pass_on(*rooms)
        self.claim, *_ = claims if claims is not None else await self.store.claim(self.request(*rooms))
        return claims is not None

    async def next(self, *rooms: KindRequest, **more: Any) -> Passed:
        """Whoever is next, if need be by a claim."""
        verdict, claims = await self.pass_on(*rooms, **more)
        assert verdict.state is State.SUCCEEDED
        found = claims if claims is not None else await self.store.claim(self.request(*rooms, **more))
        return Passed([claim.id for claim in found], is_at_once=claims is not None)


class Passed(NamedTuple):
    """Who is next, and whether that was found out in the same step."""

    ids: list[int]
    is_at_once: bool
