"""The same on every store: what is taken, by whom, and what is said of what nobody can take."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.conftest import NewEngine
from tests.node.counted_functions import Crowd, node_of
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, until

from synergon import Context, Engine, Resources
from synergon.model.claims import ClaimRequest, Claims
from synergon.model.requirements import PROCESS, THREAD, UNIT, WHOLE_NODE


async def test_costs_fill_a_machine_exactly(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(cpu=4, ram="4GiB", gpu=0), child_processes=3)
    crowd = Crowd()

    @engine.task(cost=Resources(cpu=1, ram="512MiB"))
    async def small() -> None:
        await crowd.join("small")

    @engine.task(cost=Resources(cpu=0.5, ram="1GiB"))
    async def hungry() -> None:
        await crowd.join("hungry")

    async with engine.worker(drain=True):
        await small.enqueue_many([()] * 2)  # 2 cpu, 1 GiB
        await hungry.enqueue_many([()] * 8)  # room for three of them: 1.5 cpu, 3 GiB
        await until(lambda: crowd.now == {"small": 2, "hungry": 3})
        free = {PROCESS: 3 * UNIT, THREAD: 64 * UNIT, WHOLE_NODE: 0, "cpu": 500_000, "ram": 0, "gpu": 0}
        assert node_of(engine).state().free == free
        crowd.gate.open()
    assert crowd.most["small"] == 2
    assert crowd.most["hungry"] <= 4


async def test_a_remote_database_looks_for_one_half_while_the_other_runs(
    new_engine: NewEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is the same processor that does both, all is asked for at once."""
    engine = new_engine(url, concurrency=240)
    asked: list[int] = []
    crowd = Crowd()

    @engine.task
    async def work() -> None:
        await crowd.join("work")

    async with engine:
        claim = engine._store.claim

        async def noted(request: ClaimRequest) -> Claims:
            asked.append(request.limit)
            return await claim(request)

        monkeypatch.setattr(engine._store, "claim", noted)
        await work.enqueue_many([()] * 240)
        async with engine.worker(drain=True):
            await until(lambda: crowd.now == {"work": 240})
            crowd.gate.open()
        assert asked[0] == (120 if engine._store.capabilities.remote else 240)
        assert max(asked) == asked[0]


async def test_what_is_given_back_is_taken_again_at_once(new_engine: NewEngine, url: str) -> None:
    """Nothing but the end of the task before wakes the next one: the sweep comes too late for it."""
    engine = new_engine(url, resources=Resources(cpu=1))
    ran: list[int] = []

    @engine.task(cost=Resources(cpu=1))
    async def alone(number: int) -> None:
        assert node_of(engine).state().free["cpu"] == 0
        ran.append(number)

    async with engine.worker(drain=True):
        await alone.enqueue_many([(number,) for number in range(20)])
    assert ran == list(range(20))


async def test_tasks_go_only_to_nodes_that_have_what_they_need_and_nothing_they_forbid(
    new_engine: NewEngine, url: str
) -> None:
    labels = {"eu": {"zone:eu", "gpu:a100"}, "us": {"zone:us"}, "plain": set[str]()}
    engines = {name: new_engine(url, name=name, labels=found, sweep=0.05) for name, found in labels.items()}
    ran: list[tuple[str, str]] = []

    for name, engine in engines.items():

        def register(engine: Engine, name: str) -> None:
            @engine.task(needs={"zone:eu"})
            async def in_europe() -> None:
                ran.append(("in_europe", name))

            @engine.task(forbids={"zone:eu", "zone:us"})
            async def nowhere() -> None:
                ran.append(("nowhere", name))

            @engine.task
            async def anywhere() -> None:
                ran.append(("us", name))

        register(engine, name)

    any_one = engines["plain"]
    async with engines["eu"].worker(), engines["us"].worker(), any_one.worker():
        handles = []
        for _ in range(5):
            handles += [await any_one.kinds[kind].enqueue() for kind in ("in_europe", "nowhere")]
            handles.append(await any_one.kinds["anywhere"].with_options(needs={"zone:us"}).enqueue())
        for handle in handles:
            await handle.result(timeout=PATIENCE_SECONDS)
    assert Counter(ran) == {("in_europe", "eu"): 5, ("nowhere", "plain"): 5, ("us", "us"): 5}


async def test_a_demand_that_no_live_node_could_meet_is_spoken_of_once(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = new_engine(url)
    engine = new_engine(url, name="node-a", resources=Resources(gpu=1), labels={"zone:us"})

    async def train() -> None:
        """Nothing to do."""

    for one in (producer, engine):
        one.task(cost=Resources(gpu=1))(train)
    async with producer:
        known = producer.kinds["train"]
        await known.with_options(cost=Resources(gpu=2), needs={"zone:eu"}).enqueue()  # nobody runs anything yet
        async with engine.worker():
            await known.enqueue()
            assert caplog.messages == []
            producer._unrunnable_warning._read_at = None
            for _ in range(3):
                await known.with_options(cost=Resources(gpu=2), needs={"zone:eu"}).enqueue()
            (said,) = [message for message in caplog.messages if "no live node" in message]
    assert said == (
        "no live node could ever run this task of kind 'train' (gpu 2, needs zone:eu): node-a lacks the label zone:eu "
        "and has gpu 1 in all; it waits for one that can"
    )


async def test_it_is_spoken_of_too_where_only_the_nodes_know_what_a_kind_demands(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer, engine = new_engine(url), new_engine(url, name="node-a", resources=Resources(gpu=1))

    @engine.task(cost=Resources(gpu=4))
    async def train() -> None:
        """Nobody can."""

    @engine.task(cost=Resources(gpu=1))
    async def infer() -> None:
        """Nothing to do."""

    async with producer, engine.worker():
        for kind in ("infer", "train", "train"):
            await producer.enqueue([producer.call(kind)])
        await producer.enqueue([producer.call("train")])
    said = [message for message in caplog.messages if "no live node" in message]
    assert len(said) == 1
    assert "of kind 'train' (gpu 4): node-a has gpu 1 in all" in said[0]


async def test_it_is_spoken_of_too_when_a_task_has_enqueued_it(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url, name="node-a", resources=Resources(gpu=1))

    @engine.task
    async def train() -> None:
        """Nothing to do."""

    @engine.task
    async def plan(ctx: Context) -> None:
        ctx.enqueue(train.call(), train.with_options(cost=Resources(gpu=2)).call())

    async with engine.worker():
        await (await plan.enqueue()).result(PATIENCE_SECONDS)
        await until(lambda: any("no live node" in message for message in caplog.messages))
    (said,) = [message for message in caplog.messages if "no live node" in message]
    assert "of kind 'train' (gpu 2): node-a has gpu 1 in all" in said
