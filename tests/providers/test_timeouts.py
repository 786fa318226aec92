"""Whose timeout holds: the task's, its kind's, its provider's, what timeout_for says, the engine's; in this order."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, ended

from synergon import Engine, OptionError, Reason

LONG = 60


async def hang() -> None:
    await asyncio.sleep(LONG)


async def reason_of(engine: Engine, task: Any, **options: Any) -> Reason | None:
    async with engine.worker():
        record = await ended(await task.with_options(**options).enqueue())
        assert record.error is not None
        assert "0.05 s" in record.error.message, record.error.message
        return record.reason


@pytest.mark.parametrize("who", ["task", "kind", "provider", "timeout_for", "engine"])
async def test_the_most_specific_timeout_applies(new_engine: NewEngine, url: str, who: str) -> None:
    """Everybody farther away says a minute, so that the test would not end by theirs."""
    ladder = ["task", "kind", "provider", "timeout_for", "engine"]
    said = {name: 0.05 if name == who else LONG for name in ladder[ladder.index(who) :]}
    asked: list[tuple[str, str | None]] = []

    def timeout_for(kind: str, provider: str | None) -> float:
        asked.append((kind, provider))
        return said["timeout_for"]

    def given(name: str, value: Any) -> Any:
        option = "timeout_for" if name == "timeout_for" else "timeout"
        return {option: value} if name in said else {}

    engine = new_engine(url, timeout=said["engine"], **given("timeout_for", timeout_for))
    pool = engine.provider("pool", servers=["a"], **given("provider", said.get("provider")))
    task = pool.task(**given("kind", said.get("kind")))(hang)
    options = given("task", said.get("task"))
    assert await reason_of(engine, task, **options) is Reason.TIMEOUT
    if who == "timeout_for":
        assert asked == [("hang", "pool")]


async def test_a_provider_can_have_no_timeout(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, timeout=0.01)
    pool = engine.provider("pool", servers=["a"], timeout=None)

    @pool.task
    async def slow() -> str:
        await asyncio.sleep(0.1)
        return "done"

    async with engine.worker():
        assert await (await slow.enqueue()).result(PATIENCE_SECONDS) == "done"


@pytest.mark.parametrize("answer", ["raises", "nonsense"])
async def test_an_invalid_result_of_timeout_for_is_logged_once_and_the_engines_timeout_applies(
    new_engine: NewEngine, url: str, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    def timeout_for(kind: str, provider: str | None) -> Any:
        if answer == "raises":
            raise KeyError(kind)
        return "soon"

    engine = new_engine(url, timeout=0.05, timeout_for=timeout_for)
    task = engine.task(hang)
    with caplog.at_level(logging.ERROR, logger="synergon"):
        async with engine.worker():
            for handle in await task.enqueue_many([(), ()]):
                assert (await ended(handle)).reason is Reason.TIMEOUT
    said = [record.getMessage() for record in caplog.records if "timeout_for" in record.getMessage()]
    assert len(said) == 1
    assert "so the engine's holds" in said[0]


def test_timeout_for_must_be_a_function(new_engine: NewEngine, memory_url: str) -> None:
    with pytest.raises(OptionError, match="timeout_for must be a function of a kind and a provider's name, got 5"):
        new_engine(memory_url, timeout_for=5)
