"""Whoever has yielded keeps its place, however short the urgent work was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.conftest import NewEngine
from tests.node.counted_functions import node_of
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, Gate, make_troubled, until

from synergon import Engine


class Held:
    """Holds what a node has to tell its store until it is let go: a database that is far away."""

    def __init__(self, engine: Engine) -> None:
        self._stores, self._gate = make_troubled(engine), Gate()

    def begin(self) -> None:
        self._stores[-1].cause("finish", self._hold)

    async def _hold(self, finish: Callable[[], Awaitable[Any]]) -> Any:
        await self._gate.hold()
        return await finish()

    def open(self) -> None:
        self._gate.open()


async def test_nobody_passes_a_victim_whose_return_is_not_stored_yet(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=1)
    outcomes, done = Held(engine), asyncio.Event()
    begun: list[str] = []

    @engine.task(preemptible=True)
    async def work(name: str) -> None:
        begun.append(name)
        await done.wait()

    @engine.task
    async def other() -> None:
        begun.append("other")

    @engine.task(urgent=True)
    async def alarm() -> None:
        begun.append("alarm")

    async with engine, engine.worker(grace=0):
        victim = await work.enqueue("victim")
        await until(lambda: begun == ["victim"])
        await work.enqueue("younger")
        await other.enqueue()
        outcomes.begin()
        rung = await alarm.enqueue()
        await until(lambda: "alarm" in begun and not node_of(engine).runner.running)
        await asyncio.sleep(0.1)  # time enough to claim something, were it allowed
        outcomes.open()
        await rung.result(PATIENCE_SECONDS)
        done.set()
        await victim.result(PATIENCE_SECONDS)
        await until(lambda: len(begun) == 5)
    assert begun == ["victim", "alarm", "victim", "younger", "other"]


async def test_a_victim_that_was_cancelled_meanwhile_holds_nobody_up(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=1)
    outcomes, begun = Held(engine), list[str]()

    @engine.task(preemptible=True)
    async def work() -> None:
        begun.append("victim")
        await asyncio.Event().wait()

    @engine.task
    async def other() -> str:
        return "ran"

    @engine.task(urgent=True)
    async def alarm() -> None:
        begun.append("alarm")

    async with engine, engine.worker(grace=0):
        victim = await work.enqueue()
        await until(lambda: begun == ["victim"])
        outcomes.begin()
        await alarm.enqueue()
        await until(lambda: "alarm" in begun)
        await victim.cancel()  # the store says so instead of taking it back
        handle = await other.enqueue()
        outcomes.open()
        assert await handle.result(PATIENCE_SECONDS) == "ran"
