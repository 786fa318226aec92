"""While room is kept for a task: the others wait quietly, and leave it all that it needs beside resources."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.crowd import node_of
from tests.support import Gate, make_troubled, until

from synergon import Candidate, Resources
from synergon.node import reservation


@pytest.fixture(autouse=True)
def _is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "PATIENCE_SECONDS", 0.05)


async def in_turn(claim: Callable[[], Awaitable[Any]]) -> Any:
    """So that claims without end do not stop the test."""
    await asyncio.sleep(0)
    return await claim()


@pytest.mark.parametrize("asking", ["big", "small"])
async def test_what_is_accepted_and_does_not_fit_is_no_reason_to_claim_again(
    new_engine: NewEngine, url: str, asking: str
) -> None:
    """Whether it is the task that room is kept for, or one from which it is kept."""
    engine = new_engine(url, resources=Resources(cpu=4))
    stores, gate, asked = make_troubled(engine), Gate(), asyncio.Event()

    @engine.task(cost=Resources(cpu=1), timeout=60)
    async def hold() -> None:
        await gate.hold()

    @engine.task(cost=Resources(cpu=4), timeout=60)
    async def big() -> None:
        """Nothing to do."""

    @engine.task(cost=Resources(cpu=1), timeout=600)
    async def small() -> None:
        """Nothing to do."""

    @engine.kinds[asking].can_accept
    async def accept(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        asked.set()
        return candidates

    async with engine.worker():
        node = node_of(engine)
        stores[-1].cause("claim", in_turn)
        await hold.enqueue()
        await gate.until_reached()
        handles = [await big.enqueue()]
        await until(lambda: node.reservation.kept is not None)
        handles.append(await small.enqueue())
        await asked.wait()
        before = stores[-1].calls["claim"]
        await until(lambda: stores[-1].calls["claim"] >= before + 3)
        await until(lambda: node.scheduler.is_at_rest(asking), patience_seconds=5)
        gate.open()
        for handle in handles:
            await handle.result(timeout=8)
