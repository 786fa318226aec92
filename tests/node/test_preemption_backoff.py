"""A kind to which nobody has yielded rests, and no other urgent kind does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, make_troubled, until_state

from synergon import Resources, State, Why
from synergon.node.capacity import preemption


async def test_an_urgent_kind_that_rests_keeps_no_other_one_from_starting(
    new_engine: NewEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "YIELD_SECONDS", 0.1)
    engine = new_engine(url, concurrency=9, resources=Resources(cpu=2))
    stores, claims, soft_gate, deaf_gate = make_troubled(engine), Gate(), Gate(), ThreadGate()
    order: list[str] = []

    @engine.task(preemptible=True, cost=Resources(cpu=1))
    async def soft() -> None:
        await soft_gate.hold()

    @engine.task(preemptible=True, cost=Resources(cpu=1))
    def deaf() -> None:
        deaf_gate.hold()

    @engine.task(urgent=True, cost=Resources(cpu=1), priority=1)
    async def first() -> None:
        order.append("first")

    @engine.task(urgent=True, cost=Resources(cpu=1))
    async def second() -> None:
        order.append("second")

    async def hold(claim: Callable[[], Awaitable[Any]]) -> Any:
        await claims.hold()
        return await claim()

    async with engine, engine.worker(grace=0), contextlib.AsyncExitStack() as stack:
        for gate in (claims, soft_gate, deaf_gate):
            stack.callback(gate.open)
        await soft.enqueue()
        await soft_gate.until_reached()
        await deaf.enqueue()
        await deaf_gate.until_reached()
        resting = await first.enqueue()
        await until_state(resting, State.RUNNING)
        await until_state(resting, State.READY)  # the one who was asked has not yielded
        stores[-1].cause("claim", hold)
        handle = await second.enqueue()
        await asyncio.wait_for(claims.until_reached(), PATIENCE_SECONDS)
        said, of_resting = await handle.explain(), await resting.explain()
        assert [node.name for node in said.can_start_on] == [engine.settings.name], said
        assert Why.RESOURCE in {cause.why for cause in of_resting.nodes[0].causes}, of_resting
        claims.open()
        await handle.result(PATIENCE_SECONDS)
        await resting.result(PATIENCE_SECONDS)  # in the room that the other one has left
        assert order == ["second", "first"]
