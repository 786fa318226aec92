"""Rates of limits, as users declare them: shared between kinds, on servers, weighted, and changed while they hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, starts_of, until

from synergon import Engine, OptionError, Rate, Server, State

ONCE_AN_HOUR = Rate(1, per="1h")


async def test_two_kinds_share_the_rate_of_a_limit_that_both_name(engine: Engine) -> None:
    engine.limit("api", 20, rate=Rate(1, per="1h", burst=4))
    started: list[str] = []

    @engine.task(limits=["api"])
    async def ask() -> None:
        started.append("ask")

    @engine.task(limits=["api"])
    def embed() -> None:
        started.append("embed")

    async with engine:
        for _ in range(4):
            await ask.enqueue()
            await embed.enqueue()
        async with engine.worker():
            await until(lambda: len(started) == 4)
            await asyncio.sleep(0.2)
            assert sorted(started) == ["ask", "ask", "embed", "embed"]
            assert (await engine.counts())[State.READY] == 4
            (limit,) = await engine.limits()
            assert limit.rate is not None
            assert limit.free_at is not None


async def test_a_node_is_woken_when_the_rate_is_free_and_not_by_its_sweep(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=None)
    engine.limit("api", rate=Rate(20))

    @engine.task(limits=["api"])
    async def ask() -> None: ...

    async with engine, engine.worker():
        started = await starts_of(await ask.enqueue_many([() for _ in range(8)]))
    assert len(started) == 8
    assert max(started) - min(started) > 0.3  # seven pauses of 50 ms, whatever the machine does


async def test_units_delay_what_follows(engine: Engine) -> None:
    engine.limit("tokens", rate=Rate(1000, per="1h", burst=500))
    started: list[str] = []

    @engine.task(limits=["tokens"], units=200)
    async def ask(prompt: str) -> None:
        started.append(prompt)

    async with engine.worker():
        await ask.enqueue("a")
        long = await ask.with_options(units=1500).enqueue("b")
        await ask.enqueue("c")
        await until(lambda: len(started) == 2)
        await asyncio.sleep(0.1)
        assert started == ["a", "b"]
        assert (await engine.get(long.id)).units == 1500


async def test_a_rate_on_a_server_leaves_the_others_free(engine: Engine) -> None:
    pool = engine.provider("pool", servers={"http://slow": 9, "http://fast": 9})
    engine.limit("http://slow", rate=ONCE_AN_HOUR)
    used: list[str] = []

    @pool.task
    async def draw(server: Server) -> None:
        used.append(server.address)

    async with engine.worker():
        for handle in await draw.enqueue_many([() for _ in range(12)]):
            await handle.result(PATIENCE_SECONDS)
    assert used.count("http://slow") == 1


async def test_a_rate_that_an_operator_changes_holds_at_once(engine: Engine) -> None:
    engine.limit("api", 20, rate=ONCE_AN_HOUR)

    @engine.task(limits=["api"])
    async def ask() -> None: ...

    async with engine.worker():
        handles = await ask.enqueue_many([() for _ in range(5)])
        await handles[0].result(PATIENCE_SECONDS)
        await engine.set_limit("api", rate=Rate(1000))
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
        (limit,) = await engine.limits()
        assert limit.value == 20
        (action,) = await engine.audit()
        assert action.outcome == "the rate of api is 1000 per second now, was 1 per hour"


async def test_an_explanation_names_the_rate_and_the_moment(engine: Engine) -> None:
    engine.limit("openai", rate=Rate(600, per="1m"))

    @engine.task(limits=["openai"])
    async def ask() -> None: ...

    async with engine.worker():
        await (await ask.with_options(units=6000).enqueue()).result(PATIENCE_SECONDS)
        sentence = str(await engine.explain((await ask.enqueue()).id))
    assert "waits for a permit: rate openai: 600 per minute; free in" in sentence


def test_a_rate_is_exact_for_millions_of_units_in_a_minute() -> None:
    rate = Rate(150_000_000, per="1m").record
    assert (rate.starts, rate.per) == (150_000_000, 60_000_000)


def test_a_rate_counts_units_or_starts() -> None:
    with pytest.raises(OptionError, match="Rate by must be 'units' or 'starts', got 'tokens'"):
        Rate(5, by="tokens")  # type: ignore[arg-type]


@pytest.mark.parametrize("units", [0, -1, 1.5, True, "many", 2**31])
def test_units_are_a_whole_number(engine: Engine, units: Any) -> None:
    engine.limit("api", 1)

    @engine.task(limits=["api"])
    async def ask() -> None: ...

    with pytest.raises(OptionError, match="units must be a whole number from 1 to"):
        ask.with_options(units=units)
    with pytest.raises(OptionError, match="units must be a whole number from 1 to"):
        engine.task(name="other", limits=["api"], units=units)(ask.function)


async def test_units_without_a_limit_are_an_error_and_nothing_is_stored(engine: Engine) -> None:
    @engine.task
    async def ask() -> None: ...

    words = "the task names no limit and runs on no server; give limits="
    with pytest.raises(OptionError, match=words):
        ask.with_options(units=5)
    with pytest.raises(OptionError, match=words):
        engine.task(name="other", units=5)(ask.function)
    async with engine:
        assert sum((await engine.counts()).values()) == 0


@pytest.mark.parametrize("rate", [5, "600/1m", (600, 60)])
async def test_a_rate_is_a_rate(engine: Engine, rate: Any) -> None:
    with pytest.raises(OptionError, match="rate must be a Rate, like"):
        engine.limit("api", 1, rate=rate)
    engine.limit("api", 1)
    async with engine:
        with pytest.raises(OptionError, match="rate must be a Rate, like"):
            await engine.set_limit("api", rate=rate)
        with pytest.raises(OptionError, match="nothing to change for the limit 'api'"):
            await engine.set_limit("api")
        assert await engine.audit() == []


async def test_a_limit_is_declared_once(engine: Engine) -> None:
    engine.limit("api", 1, rate=Rate(5))
    engine.limit("api", 1, rate=Rate(5))
    with pytest.raises(OptionError, match=r"declared as 1 \(5 per second\) and as 1 \(6 per second\)"):
        engine.limit("api", 1, rate=Rate(6))


async def test_the_limit_of_a_kind_has_no_rate(engine: Engine) -> None:
    @engine.task(max_running_global=2)
    async def ask() -> None: ...

    async with engine:
        with pytest.raises(OptionError, match="the rate of a kind is an option of the kind"):
            await engine.set_limit("kind:ask", rate=Rate(5))
