"""What users pass or do wrongly raises an error of ours, on every store."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest
from tests.conftest import NewEngine

from synergon import Engine, OptionError


@pytest.fixture(params=("memory", "sqlite", "postgres"))
def url(request: pytest.FixtureRequest) -> str:
    """The URL of each store in turn."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.mark.parametrize("text", ["\ud800", "a\0b"])
@pytest.mark.parametrize("name", ["kind", "queue", "tag", "key"])
async def test_a_filter_that_no_database_can_hold_is_rejected(engine: Engine, name: str, text: str) -> None:
    async with engine:
        with pytest.raises(OptionError, match=f"{name} must be text that a database can hold"):
            # Any of the filters.
            await engine.tasks(**{name: text})  # type: ignore[arg-type]


@pytest.mark.parametrize("why", [1, b"bytes", ["list"]])
async def test_a_reason_that_is_no_text_is_rejected(engine: Engine, why: Any) -> None:
    @engine.task
    async def work() -> None: ...

    async with engine:
        handle = await work.enqueue()
        group = await engine.group("all", [work.call()])
        for cancel in (engine.cancel(handle.id, why), engine.cancel_group(group.id, why)):
            with pytest.raises(OptionError, match="why must be text"):
                await cancel
        with pytest.raises(OptionError, match="why must be text"):
            await engine._control.cancel([handle.id], why)


@pytest.mark.parametrize("name", ["concurrency", "threads", "child_processes"])
def test_more_tasks_at_once_than_any_process_can_run_are_rejected(new_engine: NewEngine, name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} must be at most 100000"):
        new_engine("memory://", **{name: 10**12})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_can_be_stopped_after_its_loop_was_closed(url: str) -> None:
    engine = Engine(url)

    @engine.task
    async def work() -> None: ...

    async def leave_connected() -> None:
        await engine.connect()
        handle = await work.enqueue()
        waiting = asyncio.ensure_future(handle.result())
        await engine.counts()
        await asyncio.sleep(0)
        waiting.cancel()

    async def enqueue() -> int:
        async with engine:
            return (await work.enqueue()).id

    asyncio.run(leave_connected())
    asyncio.run(engine.stop())
    assert not engine._connection.is_open
    assert asyncio.run(enqueue()) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the transports of the closed loop
        gc.collect()
