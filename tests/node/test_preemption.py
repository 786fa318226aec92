"""Urgent work on a full node: who may yields, the cheapest first, at no cost; nobody else does."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.counted_functions import node_of
from tests.node.every_store import every_url  # noqa: F401
from tests.node.full_node import Alarm, Crowd, Deaf
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, make_troubled, until

from synergon import Context, Engine, OptionError, Resources, State
from synergon.model.requirements import SLOT
from synergon.node.capacity import preemption


async def test_on_a_full_node_the_last_to_begin_yields_to_urgent_work_and_succeeds_later(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url, concurrency=2)
    crowd = Crowd(engine)

    @engine.task(urgent=True)
    async def alarm() -> list[int]:
        return list(crowd.inside)

    async with engine, engine.worker():
        handles = await crowd.fill(2)
        rung = await alarm.enqueue()
        assert await rung.result(PATIENCE_SECONDS) == [1]
        assert (await rung.status()).claim_no == 1, "it was not given back and taken again meanwhile"
        assert crowd.preempted == [2]
        await until(lambda: sorted(crowd.inside) == [1, 2])  # it has its place again
        crowd.open()
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == [1, 1]
        record = await handles[1].status()
        assert (record.attempts, record.crashes, record.errors, record.claim_no) == (1, 0, (), 2)


class HeldClaims:
    """Holds the answer to a claim that has found something until it is opened: a database that is far away."""

    def __init__(self, engine: Engine) -> None:
        self._stores, self.gate = make_troubled(engine), Gate()

    def begin(self) -> None:
        self._stores[-1].cause("claim", self._hold)

    async def _hold(self, call: Callable[[], Awaitable[Any]]) -> Any:
        claims = await call()
        if claims:
            await self.gate.hold()
        return claims


@pytest.mark.parametrize("what", ["slots", "resources"])
async def test_if_less_is_yielded_than_was_claimed_for_those_are_served_that_can_be(
    new_engine: NewEngine, memory_url: str, what: str
) -> None:
    is_cpu = what == "resources"
    engine = new_engine(memory_url, concurrency=9 if is_cpu else 2, resources=Resources(cpu=4))
    claims, two = HeldClaims(engine), Resources(cpu=2)
    crowd, deaf = Crowd(engine, cost=two), Deaf(engine, cost=two)

    @engine.task(urgent=True, priority=5, cost=Resources(cpu=3 if is_cpu else 1))
    async def big() -> str:
        return "big"

    @engine.task(urgent=True, cost=Resources(cpu=1))
    async def small() -> str:
        return "small"

    async with engine, engine.worker(grace=0) as node:
        await crowd.fill(1)
        hopeless = await deaf.begin()
        claims.begin()
        first, second = await engine.enqueue([engine.call("big"), engine.call("small")])
        await claims.gate.until_reached()
        await hopeless.cancel()
        await until(lambda: node.runner.running[hopeless.id].stop is not None)
        claims.gate.open()
        if is_cpu:
            assert await second.result(PATIENCE_SECONDS / 2) == "small"
        else:
            assert await first.result(PATIENCE_SECONDS / 2) == "big"
        assert crowd.preempted == [1]
        deaf.open()


async def test_who_has_yielded_is_spared_for_a_while(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=1)
    crowd = Crowd(engine)

    @engine.task(urgent=True)
    async def alarm(number: int) -> int:
        return number

    async with engine, engine.worker():
        (handle,) = await crowd.fill(1)
        assert await (await alarm.enqueue(1)).result(PATIENCE_SECONDS) == 1
        await until(lambda: crowd.inside == [1])
        second = await alarm.enqueue(2)
        node_of(engine).scheduler.wake_all()
        await asyncio.sleep(0.1)
        assert (await second.status()).state is State.READY
        assert crowd.preempted == [1]
        crowd.open()
        assert await second.result(PATIENCE_SECONDS) == 2
        assert await handle.result(PATIENCE_SECONDS) == 1


async def test_resources_are_yielded_as_well_as_slots_and_no_more_than_needed(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=10, resources=Resources(cpu=4))
    crowd = Crowd(engine, cost=Resources(cpu=1))

    @engine.task(urgent=True, cost=Resources(cpu=2))
    async def alarm() -> list[int]:
        return sorted(crowd.inside)

    async with engine, engine.worker():
        await crowd.fill(4)
        assert await (await alarm.enqueue()).result(PATIENCE_SECONDS) == [1, 2]
        assert sorted(crowd.preempted) == [3, 4]
        crowd.open()


async def test_what_is_free_is_used_before_anybody_yields(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url, concurrency=3)
    crowd, alarm = Crowd(engine), Alarm(engine)

    async with engine, engine.worker():
        await crowd.fill(2)
        await alarm.rings()
        assert crowd.preempted == []
        crowd.open()


async def test_urgent_work_goes_before_a_higher_priority(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url, concurrency=1)
    order: list[str] = []

    @engine.task(priority=1000)
    async def important() -> None:
        order.append("important")

    @engine.task(urgent=True, priority=-5)
    async def alarm() -> None:
        order.append("alarm")

    async with engine:
        await important.enqueue()
        await alarm.enqueue()
        async with engine.worker(drain=True):
            pass
    assert order == ["alarm", "important"]


async def test_several_urgent_tasks_of_two_kinds_never_take_more_than_can_yield(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine = new_engine(memory_url, concurrency=2)
    crowd = Crowd(engine)
    gate = Gate()
    inside, most = 0, 0

    async def hold() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside + len(crowd.inside))
        await gate.hold()
        inside -= 1

    @engine.task(urgent=True)
    async def alarm() -> None:
        await hold()

    @engine.task(urgent=True)
    async def siren() -> None:
        await hold()

    async with engine, engine.worker():
        await crowd.fill(2)
        handles = [await kind.enqueue() for kind in (alarm, siren, alarm, siren)]
        await until(lambda: inside == 2)
        waiting = [handle for handle in handles if (await handle.status()).state is State.READY]
        assert len(waiting) == 2, "what there is no room for is not claimed"
        gate.open()
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
        crowd.open()
    assert most == 2
    assert sorted(crowd.preempted) == [1, 2]


# ---------------------------------------------------------------- how bodies yield


@pytest.mark.parametrize("asks", ["cancel_requested", "still_owned"])
async def test_a_thread_yields_when_it_asks(new_engine: NewEngine, memory_url: str, asks: str) -> None:
    engine = new_engine(memory_url, concurrency=1)
    gate, alarm = ThreadGate(), Alarm(engine)

    @engine.task(preemptible=True)
    def work(ctx: Context) -> str:
        if ctx.claim_no > 1:
            return "whole"
        gate._reached.set()
        while not ctx.cancel_requested if asks == "cancel_requested" else ctx.still_owned_sync():
            time.sleep(0.001)
        return "half"

    async with engine, engine.worker():
        first = await work.enqueue()
        await gate.until_reached()
        await alarm.rings()
        assert await first.result(PATIENCE_SECONDS) == "whole"
        record = await first.status()
        assert (record.attempts, record.errors) == (1, ())


async def test_a_child_process_is_killed_and_no_crash_is_charged(
    new_engine: NewEngine, sqlite_url: str, tmp_path: Path
) -> None:
    engine = new_engine(sqlite_url, concurrency=1)
    sleep_long = on(engine, process_bodies.sleep_long, preemptible=True)
    started, alarm = tmp_path / "started", Alarm(engine)

    async with engine, engine.worker(grace=0):
        handle = await sleep_long.enqueue(str(started))
        await until(lambda: started.exists() and started.read_text().endswith("\n"))
        pid = int(started.read_text())
        await alarm.rings()
        assert not psutil.pid_exists(pid)
        record = await handle.status()
        assert (record.crashes, record.errors) == (0, ())


async def test_a_body_that_finishes_instead_of_yielding_has_finished(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url, concurrency=1)
    gate, alarm = Gate(), Alarm(engine)

    @engine.task(preemptible=True)
    async def work() -> str:
        try:
            await gate.hold()
        except asyncio.CancelledError:
            return "finished all the same"
        return "let go"

    async with engine, engine.worker():
        first = await work.enqueue()
        await gate.until_reached()
        await alarm.rings()
        assert await first.result(PATIENCE_SECONDS) == "finished all the same"


# ---------------------------------------------------------------- what must always hold


async def test_whatever_happens_no_more_is_used_than_there_is(new_engine: NewEngine, memory_url: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    engine = new_engine(memory_url, concurrency=6, resources=Resources(cpu=4, gpu=1), sweep=0.05)
    in_use = {"cpu": 0.0, "gpu": 0.0}

    def check() -> None:
        assert engine._node is not None
        ledger = engine._node.ledger
        for name, available in ledger.available.items():
            assert 0 <= available <= ledger.totals[name], (seed, name, available)
        assert 0 <= ledger.in_use <= ledger.concurrency, (seed, ledger.in_use)
        assert in_use["cpu"] <= 4, seed
        assert in_use["gpu"] <= 1, seed

    async def body(cpu: float, gpu: float, seconds: float, fails: bool) -> None:
        in_use["cpu"] += cpu
        in_use["gpu"] += gpu
        check()
        try:
            await asyncio.sleep(seconds)
            if fails:
                raise ValueError("as it was told")
        finally:
            in_use["cpu"] -= cpu
            in_use["gpu"] -= gpu
            check()

    @engine.task(preemptible=True, retry=3)
    async def humble(cpu: float, gpu: float, seconds: float, fails: bool) -> None:
        await body(cpu, gpu, seconds, fails)

    @engine.task(urgent=True, retry=2)
    async def proud(cpu: float, gpu: float, seconds: float, fails: bool) -> None:
        await body(cpu, gpu, seconds, fails)

    async with engine, engine.worker():
        handles = []
        for _ in range(150):
            kind = humble if chance.random() < 0.7 else proud
            cpu, gpu = chance.choice([0.5, 1.0, 2.0, 4.0]), chance.choice([0.0, 0.0, 0.5, 1.0])
            call = kind.with_options(cost=Resources(cpu=cpu, gpu=gpu), retry=1)
            handles.append(await call.enqueue(cpu, gpu, chance.random() / 100, chance.random() < 0.1))
            if chance.random() < 0.1:
                await chance.choice(handles).cancel()
            await asyncio.sleep(chance.random() / 200)
        async with asyncio.timeout(PATIENCE_SECONDS):
            for handle in handles:
                await engine.wait(handle.id)
        ledger = node_of(engine).ledger
        assert ledger.available == ledger.totals
        assert (ledger.in_use, ledger.promised.in_use) == (0, 0)


class Stub:
    """As much of an attempt as the choice looks at."""

    def __init__(self, **cost: int) -> None:
        self.cost = cost


@pytest.mark.parametrize(
    ("costs", "lacking", "chosen"),
    [
        ([1, 1, 1], {"cpu": 2}, [0, 1]),
        ([1, 4, 1], {"cpu": 4}, [1]),
        ([1, 1, 4], {"cpu": 4}, [2]),
        ([1, 1, 1], {"cpu": 4}, []),
        ([0, 0, 1], {"cpu": 1}, [2]),
        ([1, 1, 1], {SLOT: 1}, [0]),
        ([0, 2, 1], {SLOT: 1, "cpu": 1}, [1]),
        ([1, 1, 1], {}, []),
    ],
)
def test_the_cheapest_are_chosen_and_no_more_than_needed(
    costs: list[int], lacking: dict[str, int], chosen: list[int]
) -> None:
    crowd: list[Any] = [Stub(**({"cpu": cost} if cost else {})) for cost in costs]
    assert preemption.chosen_victims(crowd, lacking) == [crowd[index] for index in chosen]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"urgent": True, "preemptible": True}, "urgent and preemptible are mutually exclusive"),
        ({"preemptible": True, "uninterruptible": True}, "what is uninterruptible never yields"),
        ({"urgent": 1}, "urgent must be True or False, got 1"),
        ({"preemptible": "yes"}, "preemptible must be True or False, got 'yes'"),
        ({"uninterruptible": None}, "uninterruptible must be True or False, got None"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(
    memory_url: str, options: dict[str, Any], said: str
) -> None:
    engine = Engine(memory_url)

    async def body() -> None: ...

    with pytest.raises(OptionError, match=said):
        engine.task(**options)(body)
    with pytest.raises(OptionError, match="has no option 'urgent'"):
        engine.task(body).with_options(urgent=True)  # type: ignore[call-arg]  # wrong on purpose
