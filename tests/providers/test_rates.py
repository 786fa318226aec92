"""Rates: how many start in a given time, over all nodes. Counted, with room to the side where a clock might be late."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, starts_of, until

from synergon import Engine, Rate, State


def most_within(moments: list[float], seconds: float) -> int:
    """How many of them lie in the fullest stretch of this length."""
    ordered = sorted(moments)
    return max(sum(begin <= moment < begin + seconds for moment in ordered) for begin in ordered)


async def test_a_rate_lets_one_start_every_so_often(engine: Engine) -> None:
    @engine.task(rate=Rate(20))
    async def work() -> None: ...

    async with engine.worker():
        started = await starts_of(await work.enqueue_many([() for _ in range(12)]))
    assert len(started) == 12
    # Eleven turns of 50 ms lie between the first and the last, whatever the machine does meanwhile.
    assert max(started) - min(started) > 0.45


async def test_a_burst_goes_at_once_and_the_rest_in_their_turn(engine: Engine) -> None:
    started: list[float] = []

    @engine.task(rate=Rate(2, per=60, burst=5))
    async def work() -> None:
        started.append(time.monotonic())

    async with engine.worker():
        handles = await work.enqueue_many([() for _ in range(30)])
        await until(lambda: len(started) == 5)
        for handle in handles[:5]:
            await handle.result(PATIENCE_SECONDS)
        await asyncio.sleep(0.2)
        counts = await engine.counts()
    assert len(started) == 5
    assert counts[State.WAITING] + counts[State.SCHEDULED] == 25
    assert counts[State.READY] == 0


async def test_each_key_has_a_rate_of_its_own(engine: Engine) -> None:
    started: dict[str, int] = defaultdict(int)

    @engine.task(limit_by="{customer}", rate=Rate(1, per=60, burst=2))
    async def work(customer: str) -> None:
        started[customer] += 1

    async with engine.worker():
        await work.enqueue_many([(f"c{number % 10}",) for number in range(100)])
        await until(lambda: sum(started.values()) == 20)
        await asyncio.sleep(0.1)
    assert set(started.values()) == {2}
    assert len(started) == 10


async def test_a_rate_holds_over_two_engines_together(new_engine: NewEngine, sqlite_url: str) -> None:
    engines = [new_engine(sqlite_url, sweep=0.05) for _ in range(2)]
    for engine in engines:

        @engine.task(name="work", rate=Rate(40, burst=3))
        async def work() -> None: ...

    async with engines[0].worker(), engines[1].worker():
        started = await starts_of(await engines[0].enqueue([engines[0].call("work") for _ in range(24)]))
    assert len(started) == 24
    # In any half second: the burst, twenty more, and two whose start was written down late.
    assert most_within(started, 0.5) <= 3 + 20 + 2
    assert max(started) - min(started) > 0.4


async def test_a_rate_and_a_limit_of_keys_hold_together(engine: Engine) -> None:
    running, most = 0, 0

    @engine.task(limit_by="{customer}", limit=1, rate=Rate(200, burst=50))
    async def work(customer: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    async with engine.worker():
        for handle in await work.enqueue_many([("one",) for _ in range(20)]):
            await handle.result(PATIENCE_SECONDS)
    assert most == 1


async def test_who_waits_for_a_turn_can_be_cancelled_and_the_others_keep_theirs(engine: Engine) -> None:
    started: list[int] = []

    @engine.task(rate=Rate(10))
    async def work(number: int) -> None:
        started.append(number)

    async with engine:
        handles = await work.enqueue_many([(number,) for number in range(6)])
        for handle in handles[2:5]:
            assert await handle.cancel()
        async with engine.worker():
            await handles[5].result(PATIENCE_SECONDS)
    assert started == [0, 1, 5]


@pytest.mark.parametrize("late", [False, True])
async def test_a_rate_survives_a_restart(new_engine: NewEngine, sqlite_url: str, late: bool) -> None:
    started: list[int] = []

    def make() -> Engine:
        engine = new_engine(sqlite_url)

        @engine.task(name="work", rate=Rate(1, per=60, burst=2))
        async def work(number: int) -> None:
            started.append(number)

        return engine

    first = make()
    async with first.worker():
        await first.enqueue([first.call("work", number=number) for number in range(4)])
        await until(lambda: len(started) == 2)
    second = make()
    async with second.worker():
        if late:
            await second.enqueue([second.call("work", number=9)])
        await asyncio.sleep(0.1)
    assert started == [0, 1]
