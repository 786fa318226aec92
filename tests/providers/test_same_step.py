"""What ends a task lets the next one start in the same step: on SQLite, both in one commit."""

from __future__ import annotations

from typing import Any

from synergon import Engine

TASKS = 20


async def test_the_next_claim_does_not_wait_for_the_outcome_that_makes_room_for_it(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)
    engine.limit("license", 1)

    @engine.task(limits=["license"])
    async def licensed(number: int) -> int:
        return number

    async with engine:
        handles = await licensed.enqueue_many((number,) for number in range(TASKS))
        calls = Calls(engine.store)
        async with engine.worker():
            assert [await handle.result() for handle in handles] == list(range(TASKS))

    assert calls.outcomes == TASKS, "one at a time"
    assert calls.claims_meanwhile >= TASKS / 2, "the claims came while the outcomes were being written"
    assert calls.empty_claims <= TASKS, "nobody asks twice for the same reason"


class Calls:
    """Counts the claims that were asked for while outcomes were under way."""

    def __init__(self, store: Any) -> None:
        self._claim, self._finish = store.claim, store.finish
        store.claim, store.finish = self.claim, self.finish
        self._under_way = 0
        self.outcomes = self.claims_meanwhile = self.empty_claims = 0

    async def claim(self, request: Any) -> Any:
        self.claims_meanwhile += self._under_way > 0
        claims = await self._claim(request)
        self.empty_claims += not claims
        return claims

    async def finish(self, settlements: Any) -> Any:
        self._under_way += 1
        try:
            verdicts = await self._finish(settlements)
        finally:
            self._under_way -= 1
        self.outcomes += len(verdicts)
        return verdicts
