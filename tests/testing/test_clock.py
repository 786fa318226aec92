"""The test's clock: it stands still until it is moved, and all that is due later follows it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.support import PATIENCE_SECONDS
from tests.testing.app import engine, flaky, greet, ran
from tests.testing.conftest import MIDNIGHT

from synergon import OptionError, Reason, State, testing
from synergon.testing import Tester


async def test_it_stands_still(tester: Tester) -> None:
    assert tester.clock.now == MIDNIGHT
    await asyncio.sleep(0.002)
    assert tester.clock.now == MIDNIGHT


async def test_it_begins_now_unless_told() -> None:
    before = datetime.now(UTC)
    async with testing.memory(engine) as tester:
        assert before - timedelta(milliseconds=1) <= tester.clock.now <= datetime.now(UTC)


@pytest.mark.parametrize("duration", [600, "10m", timedelta(minutes=10)])
async def test_it_moves_by_any_duration(tester: Tester, duration: float | str | timedelta) -> None:
    tester.clock.advance(duration)
    assert tester.clock.now == MIDNIGHT + timedelta(minutes=10)


async def test_a_delay_follows_it(tester: Tester) -> None:
    await greet.with_options(delay="1h").enqueue("Ada")
    assert await tester.drain() == []
    tester.clock.advance("59m")
    assert await tester.drain() == []
    tester.clock.advance("1m")
    (record,) = await tester.drain()
    assert record.started_at == MIDNIGHT + timedelta(hours=1)


async def test_run_at_follows_it(tester: Tester) -> None:
    await greet.with_options(run_at=MIDNIGHT + timedelta(days=400)).enqueue("Ada")
    tester.clock.advance("400d")
    assert len(await tester.drain()) == 1


async def test_retries_follow_it_without_jitter(tester: Tester) -> None:
    handle = await flaky.enqueue(2)
    await tester.drain()
    tester.clock.advance(59.999)
    assert await tester.drain() == []
    tester.clock.advance(0.001)
    await tester.drain()
    tester.clock.advance(120)
    await tester.drain()
    assert await handle.result() == 3
    assert ran == ["attempt 1", "attempt 2", "attempt 3"]


async def test_expiry_follows_it(tester: Tester) -> None:
    await greet.with_options(expires_in=60).enqueue("Ada")
    tester.clock.advance(60)
    (record,) = await tester.drain()
    assert (record.state, record.reason) == (State.FAILED, Reason.EXPIRED)
    assert ran == []


async def test_whoever_sleeps_by_it_wakes_when_it_is_moved(tester: Tester) -> None:
    sleeper = asyncio.ensure_future(tester.clock.sleep(60))
    await asyncio.sleep(0)
    tester.clock.advance(30)
    await asyncio.sleep(0)
    assert not sleeper.done()
    tester.clock.advance(30)
    await asyncio.wait_for(sleeper, PATIENCE_SECONDS)


async def test_a_day_takes_no_time(tester: Tester) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        handle = await greet.with_options(delay="1d").enqueue("Ada")
        tester.clock.advance("1d")
        await tester.drain()
    assert (await handle.status()).state is State.SUCCEEDED


@pytest.mark.parametrize("duration", [-1, "soon", None])
async def test_it_refuses_what_is_no_duration(tester: Tester, duration: object) -> None:
    with pytest.raises(OptionError, match="advance must be"):
        tester.clock.advance(duration)  # type: ignore[arg-type]  # wrong on purpose


async def test_it_refuses_a_start_without_a_time_zone() -> None:
    with pytest.raises(OptionError, match="now must have a time zone"):
        testing.memory(engine, now=datetime(2030, 1, 1))  # noqa: DTZ001
