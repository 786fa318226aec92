"""While capacity is reserved for a task: the others wait quietly, and leave it all that it needs beside resources."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.counted_functions import WITHIN_A_LEASE, node_of
from tests.node.reserving_node import HalfFull
from tests.support import PATIENCE_SECONDS, Gate, make_troubled, until

from synergon import Candidate, Resources
from synergon.node.capacity import reservation


@pytest.fixture(autouse=True)
def _is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "PATIENCE_SECONDS", 0.05)


async def ordered(claim: Callable[[], Awaitable[Any]]) -> Any:
    """So that claims without end do not stop the test."""
    await asyncio.sleep(0)
    return await claim()


@pytest.mark.parametrize("asking", ["big", "small"])
async def test_what_is_accepted_and_does_not_fit_is_no_reason_to_claim_again(
    new_engine: NewEngine, url: str, asking: str
) -> None:
    """Whether it is the task that capacity is reserved for, or one from which it is kept."""
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
        stores[-1].cause("claim", ordered)
        await hold.enqueue()
        await gate.until_reached()
        handles = [await big.enqueue()]
        await until(lambda: node.reservation.reserved is not None)
        handles.append(await small.enqueue())
        await asked.wait()
        before = stores[-1].calls["claim"]
        await until(lambda: stores[-1].calls["claim"] >= before + 3)
        await until(lambda: node.scheduler.is_idle(asking), patience_seconds=WITHIN_A_LEASE)
        gate.open()
        for handle in handles:
            await handle.result(timeout=WITHIN_A_LEASE)


class Half(HalfFull):
    """The same, for who goes on to claim meanwhile."""

    async def claims(self) -> None:
        """A good many of them, and the reservation stays."""
        for _ in range(20):
            node_of(self._engine).scheduler.wake_all()
            await asyncio.sleep(0.005)
            assert node_of(self._engine).reservation.reserved is not None


@pytest.mark.parametrize("is_asked", [False, True])
async def test_the_last_place_of_its_kind_is_left_to_the_task(new_engine: NewEngine, url: str, is_asked: bool) -> None:
    engine = new_engine(url, resources=Resources(cpu=8))
    half, ran = Half(engine), list[str]()

    @engine.task(cost=Resources(cpu=8), max_running=1, timeout=60)
    async def job(name: str) -> None:
        ran.append(name)

    if is_asked:

        @job.can_accept
        async def accept(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
            return candidates

    async with engine.worker():
        heavy = await half.begin(job, "heavy")
        light = await job.with_options(cost=Resources(cpu=0), priority=9).enqueue("light")
        await half.claims()
        assert "has reserved capacity for task" in (await light.explain()).sentence
        half.gate.open()
        await heavy.result(timeout=WITHIN_A_LEASE)
        await light.result(timeout=WITHIN_A_LEASE)
    assert ran == ["heavy", "light"]


async def test_others_of_its_kind_have_the_other_places(new_engine: NewEngine, url: str) -> None:
    """What they use up of them they give back together with what the task waits for, or not: one is left to it."""
    engine = new_engine(url, resources=Resources(cpu=8))
    gate, ran = Gate(), list[str]()

    @engine.task(cost=Resources(cpu=4), max_running=3, timeout=60)
    async def job(name: str) -> None:
        if name == "light":
            await gate.hold()
        ran.append(name)

    @engine.task(cost=Resources(cpu=1), timeout=600)
    async def small() -> None:
        ran.append("small")

    async with engine.worker():
        node = node_of(engine)
        await job.enqueue("light")
        await gate.until_reached()
        heavy = await job.with_options(cost=Resources(cpu=8)).enqueue("heavy")
        await until(lambda: node.reservation.reserved is not None)
        await job.with_options(cost=Resources(cpu=0)).enqueue_many([("light",), ("late",)])
        await until(lambda: len(node.runner.running) == 2)
        last = await small.enqueue()
        for _ in range(20):
            node.scheduler.wake_all()
            await asyncio.sleep(0.005)
        assert (len(node.runner.running), node.reservation.reserved is not None) == (2, True)
        gate.open()
        await heavy.result(timeout=WITHIN_A_LEASE)
        await last.result(timeout=WITHIN_A_LEASE)
    assert ran.index("heavy") < ran.index("small")
    assert sorted(ran) == ["heavy", "late", "light", "light", "small"]


async def test_the_last_child_process_is_left_to_the_task(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(cpu=8), child_processes=1)
    half, body = Half(engine), process_bodies.process_id
    big = process_bodies.on(engine, body, name="big", cost=Resources(cpu=8))
    quick = process_bodies.on(engine, body, name="quick", priority=9)
    async with engine.worker():
        handle = await half.begin(big)
        late = await quick.enqueue()
        await half.claims()
        half.gate.open()
        await handle.result(timeout=PATIENCE_SECONDS)
        await late.result(timeout=PATIENCE_SECONDS)
        order = sorted([await handle.status(), await late.status()], key=attrgetter("started_at"))
    assert [record.id for record in order] == [handle.id, late.id]


@pytest.mark.parametrize("is_asked", [False, True])
async def test_the_last_place_in_its_limit_is_left_to_the_task(new_engine: NewEngine, url: str, is_asked: bool) -> None:
    engine = new_engine(url, resources=Resources(cpu=8))
    engine.limit("license", 1)
    half, ran = Half(engine), list[str]()

    @engine.task(cost=Resources(cpu=8), limits=["license"], timeout=60)
    async def big() -> None:
        ran.append("big")

    @engine.task(limits=["license"], priority=9, timeout=60)
    async def light() -> None:
        ran.append("light")

    if is_asked:

        @big.can_accept
        async def accept(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
            return candidates

    async with engine.worker():
        heavy = await half.begin(big)
        late = await light.enqueue()
        await half.claims()
        assert "other tasks go first" in (await late.explain()).sentence
        half.gate.open()
        await heavy.result(timeout=WITHIN_A_LEASE)
        await late.result(timeout=WITHIN_A_LEASE)
    assert ran == ["big", "light"]


async def test_what_was_left_to_a_task_is_free_for_all_when_that_is_gone(new_engine: NewEngine, url: str) -> None:
    """Kinds that nobody has asked for since they were passed over find it, too."""
    engine = new_engine(url, resources=Resources(cpu=8))
    engine.limit("license", 1)
    half = Half(engine)

    @engine.task(cost=Resources(cpu=8), limits=["license"], timeout=60)
    async def big() -> None:
        """Nothing to do."""

    @engine.task(limits=["license"], timeout=60)
    async def light() -> None:
        """Nothing to do."""

    async with engine.worker():
        heavy = await half.begin(big)
        late = await light.enqueue()
        await until(lambda: node_of(engine).scheduler.is_idle("light"))
        await heavy.cancel()
        await late.result(timeout=WITHIN_A_LEASE)
        half.gate.open()
