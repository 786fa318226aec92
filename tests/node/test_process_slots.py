"""Bodies in child processes share the places of their worker in the order of all tasks, and nobody waits claimed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.process_functions import on
from tests.stores.actions import new_node
from tests.support import PATIENCE_SECONDS, until_state

from synergon import State, Why
from synergon.model.claims import Claim
from synergon.model.requirements import parse_requirements
from synergon.node.claims.admission import Admission
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.scheduler import Scheduler
from synergon.node.signals import Signals
from synergon.task import AnyTask


async def test_a_backlog_of_several_kinds_in_processes_does_not_delay_the_others(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url, child_processes=1, concurrency=1)
    adders = [on(engine, process_bodies.add, name=f"add-{number}") for number in range(2)]

    @engine.task(priority=1)
    async def plain() -> None: ...

    async with engine:
        handles = await engine.enqueue([adder.call(1, number) for number in range(2) for adder in adders])
        first = await plain.enqueue()
        async with engine.worker(drain=True):
            pass
        started = [(await handle.status()).started_at for handle in (first, *handles)]
    assert None not in started
    assert started == sorted(started, key=str), "plain, and then the others by their age"


async def test_among_urgent_kinds_the_priority_of_the_task_decides(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=1)
    ran: list[str] = []

    @engine.task(urgent=True, priority=5)
    async def loud(name: str) -> None:
        ran.append(name)

    @engine.task(urgent=True)
    async def soft(name: str) -> None:
        ran.append(name)

    async with engine:
        for kind, priority in ((loud, 5), (soft, 0), (loud, 1), (soft, 9)):
            await kind.with_options(priority=priority).enqueue(str(priority))
        async with engine.worker(drain=True):
            pass
    assert ran == ["9", "5", "1", "0"]


async def test_more_urgent_tasks_of_several_kinds_than_would_be_yielded_to_start_one_after_the_other(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine = new_engine(memory_url, concurrency=2, sweep=60)
    begun = asyncio.Semaphore(0)

    @engine.task(preemptible=True)
    async def long() -> None:
        begun.release()
        await asyncio.sleep(1000)

    async def body() -> None: ...

    kinds = [engine.task(urgent=True, name=name)(body) for name in ("a", "b", "c")]
    async with engine.worker(grace=0):
        await long.enqueue_many([(), ()])
        for _ in range(2):
            await asyncio.wait_for(begun.acquire(), PATIENCE_SECONDS)
        handles = await engine.enqueue([kind.call() for kind in kinds for _ in range(2)])
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)


async def test_a_call_for_a_child_process_waits_unclaimed_until_one_is_free(
    new_engine: NewEngine, url: str, tmp_path: Path
) -> None:
    engine = new_engine(url, child_processes=1, sweep=60)
    sleeper = on(engine, process_bodies.sleep_long)
    identity = on(engine, process_bodies.process_id, runs_in="thread")
    async with engine, new_engine(url, sweep=0.05) as producer, engine.worker(grace=0):
        busy = await sleeper.enqueue(str(tmp_path / "busy"))
        await until_state(busy, State.RUNNING)
        by_name = producer.call("process_id").with_options(runs_in="process")
        handles = [
            *[await identity.with_options(runs_in="process").enqueue() for _ in range(2)],
            *await producer.enqueue([by_name]),
        ]
        beside = await identity.enqueue()
        assert await beside.result(PATIENCE_SECONDS) == os.getpid()
        said = [await engine.explain(handle.id) for handle in handles]
        assert {one.state for one in said} == {State.READY}
        assert [cause.why for one in said for node in one.nodes for cause in node.causes] == [Why.PROCESSES] * 3
        assert said[0].nodes[0].causes[0].tasks == (busy.id,)
        await busy.cancel()
        found = {await handle.result(PATIENCE_SECONDS) for handle in handles}
        assert os.getpid() not in found
        assert len(found) == 1, "one after the other, in the one place"


async def test_a_call_for_a_thread_takes_no_child_process(new_engine: NewEngine, url: str, tmp_path: Path) -> None:
    engine = new_engine(url, child_processes=1)
    sleeper = on(engine, process_bodies.sleep_long)
    identity = on(engine, process_bodies.process_id)
    async with engine, new_engine(url, sweep=0.05) as producer, engine.worker(grace=0):
        await until_state(await sleeper.enqueue(str(tmp_path / "busy")), State.RUNNING)
        waits = await identity.enqueue()
        beside = [
            await identity.with_options(runs_in="thread").enqueue(),
            # Whoever does not have the function cannot tell the loop from a thread.
            *await producer.enqueue([producer.call("process_id").with_options(runs_in="loop")]),
        ]
        for handle in beside:
            assert await handle.result(PATIENCE_SECONDS) == os.getpid()
        assert (await waits.status()).state is State.READY


@pytest.mark.parametrize("others", [0, 1], ids=["one kind", "two kinds"])
async def test_kinds_that_lack_a_child_process_are_looked_at_when_one_is_free(
    new_engine: NewEngine, memory_url: str, others: int
) -> None:
    engine = new_engine(memory_url)
    child = on(engine, process_bodies.process_id, name="child")
    kinds: dict[str, AnyTask] = {"child": child}
    if others:
        kinds["other"] = on(engine, process_bodies.process_id, name="other")
    ledger = Ledger(4, 1)
    started: list[Claim] = []
    surplus: list[set[str]] = []

    class Noted(Signals):
        def claimed(self, claims: list[Claim]) -> None:
            for claim in claims:
                started.append(claim)
                ledger.take(claim.kind, cost=child.weight.cost)

        def surplus(self, kinds: Iterable[str]) -> None:
            surplus.append(set(kinds))

    async with engine:
        await engine._store.register(new_node("node-1"))
        scheduler = Scheduler(
            engine._store,
            Admission(kinds, ledger, None),
            kinds,
            Noted(),
        )
        scheduler.node_id = "node-1"
        await engine.enqueue([kind.call() for kind in kinds.values() for _ in range(2)])
        for number in range(1, 2 * len(kinds) + 1):
            await scheduler.step()
            assert len(started) == number
            scheduler.wake(kinds)  # a hint that comes while there is no child process
            await scheduler.step()
            assert len(started) == number
            ledger.release(started[-1].kind, cost=child.weight.cost)
            scheduler.capacity_freed()
    assert [claim.id for claim in started] == sorted(claim.id for claim in started)
    assert surplus[0] == set(kinds), "others are told that there is more"


async def test_the_row_says_where_a_call_runs_only_if_its_kind_does_not(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    threaded = on(engine, process_bodies.process_id, name="threaded", runs_in="thread")
    child = on(engine, process_bodies.process_id, name="child")
    async with engine:
        calls = [
            threaded.call(),
            threaded.with_options(runs_in="thread").call(),
            threaded.with_options(runs_in="process").call(),
            child.call(),
            child.with_options(runs_in="process").call(),
            child.with_options(runs_in="thread").call(),
        ]
        texts = [(await handle.status()).requirements for handle in await engine.enqueue(calls)]
    said = [parse_requirements(text).is_process if text else None for text in texts]
    assert said == [None, None, True, None, True, False]
