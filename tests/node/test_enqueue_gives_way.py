"""A program that enqueues without a pause keeps nothing else of its loop from going on, on any store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from synergon import Engine, NotConnected

MANY = 20_000


@pytest.fixture(params=("memory", "sqlite", "postgres"))
def url(request: pytest.FixtureRequest) -> str:
    """The URL of each store in turn."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


async def enqueue_until(is_enough: Callable[[], bool], task: Any) -> None:
    for _ in range(MANY):
        await task.enqueue()
        if is_enough():
            return


async def test_tasks_run_between_the_enqueues_of_one_program(engine: Engine) -> None:
    has_run = asyncio.Event()

    @engine.task
    async def quick() -> None:
        has_run.set()

    async with engine.worker():
        await enqueue_until(has_run.is_set, quick)
    assert has_run.is_set()


async def test_an_engine_can_be_stopped_between_the_enqueues_of_one_program(engine: Engine) -> None:
    @engine.task
    async def quick() -> None: ...

    await engine.connect()
    stopping = asyncio.ensure_future(engine.stop())
    with pytest.raises(NotConnected):
        await enqueue_until(lambda: False, quick)
    await stopping
