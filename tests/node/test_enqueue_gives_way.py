"""A program that enqueues without a pause keeps nothing else on its event loop from running, on any store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.node.every_store import every_url

from synergon import Engine, NotConnected

__all__ = ["every_url"]

MANY = 5000

Enqueue = Callable[[Engine, Any], Awaitable[Any]]

WAYS: dict[str, Enqueue] = {
    "one": lambda _, task: task.enqueue(),
    "a list": lambda engine, task: engine.enqueue([task.call()]),
    "a group": lambda engine, task: engine.group("quick", [task.call()]),
}


async def enqueue_until(is_enough: Callable[[], bool], enqueue: Callable[[], Awaitable[Any]]) -> None:
    for _ in range(MANY):
        await enqueue()
        if is_enough():
            return


@pytest.mark.parametrize("way", WAYS)
async def test_tasks_run_between_the_enqueues_of_one_program(engine: Engine, way: str) -> None:
    has_run = asyncio.Event()

    @engine.task
    async def quick() -> None:
        has_run.set()

    async with engine.worker():
        await enqueue_until(has_run.is_set, lambda: WAYS[way](engine, quick))
        assert has_run.is_set()


@pytest.mark.parametrize("way", WAYS)
async def test_an_engine_can_be_stopped_between_the_enqueues_of_one_program(engine: Engine, way: str) -> None:
    @engine.task
    async def quick() -> None: ...

    await engine.connect()
    stopping = asyncio.ensure_future(engine.stop())
    with pytest.raises(NotConnected):
        await enqueue_until(lambda: False, lambda: WAYS[way](engine, quick))
    await stopping
