"""A gateway over two servers, one of which fails half of its tasks at once: what that costs. Time and chance are those
of the test, so the numbers are exact."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import Final

import pytest
from tests.stores.actions import ERROR, HOUR, Worker, add_many, pool, settlement_of

from synergon.model.claims import Claim, KindRequest
from synergon.model.lifecycle import Reason, State
from synergon.model.limits import NewProvider
from synergon.model.outcomes import Failed, HandedBack, Outcome, ServerFault, Succeeded
from synergon.model.tasks import Rescheduling
from synergon.stores.memory import MemoryStore
from synergon.testing.clock import ManualClock

ROOM: Final = KindRequest(kind="work", count=1000, provider="gpu")
TASKS: Final = 2000
CAPACITY: Final = 8
ANSWER_SECONDS: Final = 0.02
REFUSAL_SECONDS: Final = 0.001
TICK_SECONDS: Final = 0.001


class Gateway:
    """Tasks that run on two servers, `well` and `weak`, one simulated attempt after the other."""

    def __init__(self, seed: int) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.calls: Counter[str] = Counter()
        self._chances = random.Random(seed)
        self._running: list[tuple[float, int, Claim, Outcome]] = []

    async def start(self, provider: NewProvider) -> None:
        """Declare the provider, and enqueue the tasks."""
        await self.store.open()
        await self.store.declare([], [provider])
        await add_many(self.store, TASKS)
        self._worker = await Worker.start(self.store, lease=HOUR)

    async def run(self) -> None:
        """Run until all tasks have ended."""
        while True:
            for claim in await self._worker.claim_kinds(ROOM):
                self._begin(claim)
            if not self._running and not await self._has_ready_tasks():
                return
            self.clock.advance(TICK_SECONDS)
            while self._running and self._running[0][0] <= self.clock.monotonic():
                await self._end()

    def _begin(self, claim: Claim) -> None:
        assert claim.server is not None
        self.calls[claim.server] += 1
        seconds, outcome = ANSWER_SECONDS, SUCCESS
        if claim.server == "weak" and self._chances.random() < 0.5:
            seconds, outcome = REFUSAL_SECONDS, self.failure(claim)
        heapq.heappush(self._running, (self.clock.monotonic() + seconds, claim.id, claim, outcome))

    def failure(self, claim: Claim) -> Outcome:
        """How an attempt fails."""
        return Failed(reason=Reason.ERROR, error=ERROR)

    async def _end(self) -> None:
        _, _, claim, outcome = heapq.heappop(self._running)
        assert claim.server is not None
        well = isinstance(outcome, Succeeded)
        await self.store.finish([settlement_of(claim, outcome, server=("gpu", claim.server), is_server_well=well)])

    async def _has_ready_tasks(self) -> bool:
        counts = await self.store.counts()
        return any(number for (_, _, state), number in counts.items() if state is State.READY)

    async def failed(self) -> int:
        """How many tasks have failed."""
        counts = await self.store.counts()
        return sum(number for (_, _, state), number in counts.items() if state is State.FAILED)


class BlamingGateway(Gateway):
    """Its tasks blame the server that fails them."""

    def failure(self, claim: Claim) -> Outcome:
        return ServerFault(error=ERROR, otherwise=Failed(reason=Reason.ERROR, error=ERROR))


SUCCESS: Final[Outcome] = Succeeded()
SEEDS: Final = (2,)


async def run(gateway: Gateway, provider: NewProvider) -> tuple[int, int]:
    """How many calls went to the weak server, and how many tasks have failed."""
    await gateway.start(provider)
    await gateway.run()
    failed = await gateway.failed()
    await gateway.store.close()
    return gateway.calls["weak"], failed


POOL: Final = pool(well=CAPACITY, weak=CAPACITY)


@pytest.mark.parametrize("seed", SEEDS)
async def test_without_health_the_server_that_fails_at_once_gets_most_tasks(seed: int) -> None:
    provider = NewProvider(name="gpu", servers=POOL, backoff_after=None, failure_most=None)
    calls, failed = await run(Gateway(seed), provider)
    assert calls > 0.6 * TASKS
    assert failed > 0.3 * TASKS


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_server_that_fails_half_of_its_tasks_is_taken_out(seed: int) -> None:
    calls, failed = await run(Gateway(seed), NewProvider(name="gpu", servers=POOL))
    assert calls < 0.03 * TASKS
    assert failed < 0.015 * TASKS


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_task_that_blames_the_server_runs_elsewhere(seed: int) -> None:
    calls, failed = await run(BlamingGateway(seed), NewProvider(name="gpu", servers=POOL))
    assert calls < 0.03 * TASKS
    assert failed == 0


async def test_old_failures_do_not_count_as_load() -> None:
    gateway = Gateway(0)
    await gateway.start(NewProvider(name="gpu", servers=pool(a=1, b=1)))
    worker = await Worker.start(gateway.store, "another", lease=24 * HOUR)
    (claim,) = await worker.claim_kinds(ROOM, limit=1)
    failed = claim.server
    assert failed is not None
    fenced = settlement_of(
        claim, Failed(reason=Reason.ERROR, error=ERROR), server=("gpu", failed), is_server_well=False
    )
    await gateway.store.finish([fenced])
    used = []
    for seconds in (0, 61):
        gateway.clock.advance(seconds)
        for _ in range(4):
            (claim,) = await worker.claim_kinds(ROOM, limit=1)
            used.append(claim.server == failed)
            await worker.finish(claim, HandedBack())
            await gateway.store.reschedule([Rescheduling(id=claim.id, delay=HOUR)])
    assert used == [False] * 4 + [True, False, True, False] or used == [False] * 4 + [False, True, False, True]
    await gateway.store.close()
