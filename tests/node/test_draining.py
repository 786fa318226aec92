"""A node that is told to drain or to restart ends when nothing runs there."""

from __future__ import annotations

import asyncio

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, Gate, row_of, until

from synergon import Engine
from synergon.model.operator_actions import RESTART_EXIT_CODE, Verb


@pytest.mark.parametrize(("verb", "code"), [("drain", 0), ("restart", RESTART_EXIT_CODE)])
async def test_a_node_ends_when_nothing_runs_there_and_says_how(
    new_engine: NewEngine, url: str, verb: Verb, code: int
) -> None:
    engine, operator = new_engine(url, sweep=0.05), new_engine(url)
    gate = Gate()

    @engine.task
    async def hold() -> str:
        await gate.hold()
        return "held"

    async with operator:
        running = asyncio.create_task(engine.run(grace=0.01))  # which is not how long it waits for running tasks
        (handle,) = await operator.enqueue([operator.call("hold")])
        await gate.until_reached()
        (record,) = await operator.nodes()
        await (operator.drain if verb == "drain" else operator.restart)(record.id)
        await until(lambda: leaving_of(operator, verb))
        (later,) = await operator.enqueue([operator.call("hold")])
        await asyncio.sleep(0.05)
        assert not running.done()
        gate.open()
        assert await asyncio.wait_for(running, PATIENCE_SECONDS) == code
        assert await handle.result(timeout=PATIENCE_SECONDS) == "held"
        assert (await later.status()).claim_no == 0
        assert await operator.nodes() == []
        assert [order.outcome for order in await operator.audit()] == [f"{verb_word(verb)} when nothing runs there"]


def verb_word(verb: Verb) -> str:
    return {"drain": "ends", "restart": "restarts"}[verb]


async def leaving_of(engine: Engine, verb: str) -> bool:
    (record,) = await engine.nodes()
    return record.is_cordoned and record.state.is_cordoned and record.state.departure == verb


async def test_an_idle_node_that_is_told_to_drain_ends_at_once(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)

    @engine.task
    async def work() -> None: ...

    async with engine:
        async with engine.worker() as node:
            await engine.drain(node.id)
            await asyncio.wait_for(node.stopped(), PATIENCE_SECONDS)
            await until(lambda: engine._node is None)
        assert await engine.nodes() == []


async def test_uncordon_calls_a_drain_off(new_engine: NewEngine, memory_url: str) -> None:
    engine, gate = new_engine(memory_url), Gate()

    @engine.task
    async def hold() -> str:
        await gate.hold()
        return "held"

    async with engine.worker() as node:
        first = await hold.enqueue()
        await gate.until_reached()
        await engine.restart(node.id)
        await until(lambda: node.cordon.departure is not None)
        second = await hold.enqueue()
        await engine.uncordon(node.id)
        gate.open()
        for handle in (first, second):
            assert await handle.result(timeout=PATIENCE_SECONDS) == "held"
        assert (node.cordon.departure, node.cordon.exit_code) == (None, 0)
        assert not (await row_of(engine, node)).is_cordoned
