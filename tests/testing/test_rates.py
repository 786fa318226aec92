"""Rates of limits follow the clock of a test."""

from __future__ import annotations

from datetime import UTC, datetime

from synergon import Engine, Rate, testing


async def test_what_the_rate_of_a_limit_permits_runs_when_the_clock_is_moved() -> None:
    engine = Engine("sqlite:///nowhere.db")
    engine.limit("api", rate=Rate(1, per="1m", burst=2))

    @engine.task(limits=["api"])
    async def ask(number: int) -> int:
        return number

    async with testing.memory(engine, now=datetime(2026, 6, 1, tzinfo=UTC)) as tester:
        await ask.enqueue_many([(number,) for number in range(4)])
        assert [record.result for record in await tester.drain()] == [0, 1]
        assert await tester.drain() == []
        tester.clock.advance("1m")
        assert [record.result for record in await tester.drain()] == [2]
        tester.clock.advance("30s")
        assert await tester.drain() == []
        tester.clock.advance("30s")
        assert [record.result for record in await tester.drain()] == [3]
