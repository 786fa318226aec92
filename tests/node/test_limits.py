"""What a node takes on: its slots, its queues, its kinds, and `max_running`."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, until

from synergon import Engine, State


async def test_max_running_holds_for_its_kind_and_for_no_other(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=10)
    gate = Gate()
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def hold(kind: str) -> None:
        running[kind] += 1
        most[kind] = max(most[kind], running[kind])
        await gate.hold()
        running[kind] -= 1

    @engine.task(max_running=2)
    async def limited() -> None:
        await hold("limited")

    @engine.task
    async def free() -> None:
        await hold("free")

    async with engine.worker(drain=True):
        await limited.enqueue_many([()] * 10)
        await free.enqueue_many([()] * 10)
        await until(lambda: running == {"limited": 2, "free": 8})
        gate.open()
    assert most == {"limited": 2, "free": 8} or most == {"limited": 2, "free": 10}


async def test_a_limited_kind_goes_on_whenever_one_of_it_ends(engine: Engine) -> None:
    ran: list[int] = []

    @engine.task(max_running=1)
    async def one_by_one(number: int) -> None:
        await asyncio.sleep(0)
        ran.append(number)

    async with engine.worker(drain=True):
        await one_by_one.enqueue_many([(number,) for number in range(50)])
    assert ran == list(range(50))


async def test_a_node_serves_the_queues_it_was_told_to(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    ran: list[str] = []

    @engine.task
    async def note(name: str) -> None:
        ran.append(name)

    async with engine:
        for queue in ("mail", "reports", "default"):
            await note.with_options(queue=queue).enqueue(queue)
        async with engine.worker(queues=["mail", "reports"], drain=True):
            pass
        assert ran == ["mail", "reports"]
        (left,) = await engine.tasks(state="ready")
        assert left.queue == "default"
        async with engine.worker(queues=None, drain=True):
            pass
    assert ran == ["mail", "reports", "default"]


async def test_a_kind_that_no_node_has_waits_and_is_never_failed(new_engine: NewEngine, url: str) -> None:
    ignorant, producer, expert = (new_engine(url, sweep=0.02) for _ in range(3))

    @ignorant.task
    async def known() -> str:
        return "ran"

    @expert.task
    async def unknown(number: int) -> int:
        return number

    async with producer:
        (handle,) = await producer.enqueue([producer.call("unknown", number=7)])
        async with ignorant.worker():
            await (await known.enqueue()).result(PATIENCE_SECONDS)
            await asyncio.sleep(0.1)  # several sweeps, in which nothing may happen to it
            record = await handle.status()
            assert (record.state, record.attempts, record.claim_no) == (State.READY, 0, 0)
        async with expert.worker():
            assert await handle.result(PATIENCE_SECONDS) == 7


async def test_two_nodes_share_the_work_and_run_nothing_twice(new_engine: NewEngine, url: str) -> None:
    engines = [new_engine(url, concurrency=3, sweep=0.02) for _ in range(2)]
    ran: list[tuple[int, int]] = []

    def register(index: int) -> None:
        @engines[index].task
        async def note(number: int) -> None:
            ran.append((index, number))
            await asyncio.sleep(0.001)

    register(0)
    register(1)
    async with engines[0].worker(drain=True), engines[1].worker(drain=True):
        await engines[0].enqueue([engines[0].call("note", number) for number in range(200)])
    assert sorted(number for _, number in ran) == list(range(200))
    assert {index for index, _ in ran} == {0, 1}


async def test_process_bodies_run_in_other_processes_and_not_more_at_once_than_allowed(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine = new_engine(memory_url, child_processes=1)
    process_id = on(engine, process_bodies.process_id)
    async with engine.worker():
        handles = await process_id.enqueue_many([()] * 6)
        found = [await handle.result(PATIENCE_SECONDS) for handle in handles]
    assert len(set(found)) == 1, "one child does them all"


async def test_a_coroutine_may_run_in_a_process_if_the_call_says_so(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    add_slowly = on(engine, process_bodies.add_slowly, runs_in="loop")
    async with engine.worker():
        handle = await add_slowly.with_options(runs_in="process").enqueue(2, 3)
        assert await handle.result(PATIENCE_SECONDS) == 5


async def test_several_kinds_share_the_places_of_child_processes(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url, child_processes=1)
    adders = [on(engine, process_bodies.add, name=f"add-{number}") for number in range(4)]
    async with engine:
        handles = [await adder.enqueue(1, number) for number, adder in enumerate(adders)]
        most = 0
        async with engine.worker():
            while not all(handle.state.is_final for handle in [await other.status() for other in handles]):
                most = max(most, (await engine.counts())[State.RUNNING])
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == [1, 2, 3, 4]
    assert most == 1
