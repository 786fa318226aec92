"""What a node takes on by what it has: resources, labels, and the order across kinds."""

from __future__ import annotations

import asyncio
from cProfile import Profile
from pstats import Stats

from tests.conftest import NewEngine
from tests.node.counted_functions import Crowd, node_of
from tests.support import PATIENCE_SECONDS, Gate, until

from synergon import Resources, State
from synergon.model.requirements import make_requirements


async def test_six_tasks_of_which_two_may_run_never_run_three_at_once(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    now, most, ran = 0, 0, 0

    @engine.task(max_running=2)
    async def pair() -> None:
        nonlocal now, most, ran
        now, ran = now + 1, ran + 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    async with engine.worker(drain=True):
        await pair.enqueue_many([()] * 6)
    assert (most, ran) == (2, 6)


async def test_three_thirds_of_a_gpu_run_beside_each_other(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(gpu=1))
    crowd = Crowd()

    @engine.task(cost=Resources(gpu=1 / 3))
    async def third() -> None:
        await crowd.join("third")

    async with engine.worker(drain=True):
        await third.enqueue_many([()] * 5)
        await until(lambda: crowd.now["third"] == 3)
        crowd.gate.open()
    assert crowd.most["third"] == 3


async def test_a_call_costs_what_it_says_and_otherwise_what_its_kind_says(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(cpu=8, custom={"license": 2}))
    crowd = Crowd()

    @engine.task(cost=Resources(custom={"license": 1}))
    async def solve(name: str) -> None:
        await crowd.join(name)

    async with engine.worker(drain=True):
        await solve.enqueue_many([("usual",)] * 3)
        await until(lambda: crowd.now["usual"] == 2)
        await solve.with_options(cost=Resources(cpu=4)).enqueue("without a license")
        await solve.with_options(cost=Resources()).enqueue("for nothing")
        await until(lambda: crowd.now == {"usual": 2, "without a license": 1, "for nothing": 1})
        crowd.gate.open()


async def test_a_call_by_name_leaves_to_the_kind_what_it_does_not_say(new_engine: NewEngine, url: str) -> None:
    engine, producer = new_engine(url, resources=Resources(gpu=1), labels={"zone:eu"}), new_engine(url)
    crowd = Crowd()

    @engine.task(cost=Resources(gpu=1))
    async def train(name: str) -> None:
        await crowd.join(name)

    async with producer, engine.worker(drain=True):
        await producer.enqueue(
            [producer.call("train", name="eu").with_options(needs={"zone:eu"}), producer.call("train", name="any")]
        )
        await until(lambda: crowd.now.total() == 1)
        assert node_of(engine).state().free["gpu"] == 0
        crowd.gate.open()
    assert crowd.most.total() == 2


async def test_a_task_that_nobody_can_run_waits_and_hides_nobody(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(gpu=1))
    ran: list[str] = []

    @engine.task
    async def note(name: str) -> None:
        ran.append(name)

    async with engine.worker():
        impossible = note.with_options(cost=Resources(gpu=2))
        waiting = [await impossible.enqueue("impossible") for _ in range(20)]
        labelled = await note.with_options(needs={"moon"}, priority=9).enqueue("on the moon")
        handle = await note.enqueue("possible")
        await handle.result(timeout=PATIENCE_SECONDS)
        for handle in (*waiting, labelled):
            assert (await handle.status()).state is State.READY
    assert ran == ["possible"]


async def test_the_end_of_a_pipeline_goes_before_its_beginning(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=1)
    ran: list[str] = []

    @engine.task(downstream_of=["middle"])
    async def end() -> None:
        ran.append("end")

    @engine.task(downstream_of=["beginning"])
    async def middle() -> None:
        ran.append("middle")

    @engine.task
    async def beginning() -> None:
        ran.append("beginning")

    async with engine:
        for kind in (beginning, middle, end, beginning, middle, end):
            await kind.enqueue()
        await beginning.with_options(priority=1).enqueue()
        async with engine.worker(drain=True):
            pass
    assert ran == ["beginning", "end", "end", "middle", "middle", "beginning", "beginning"]


async def test_a_failed_a_cancelled_and_a_handed_back_task_give_back_what_they_used(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url, resources=Resources(cpu=3, ram="1GiB", gpu=0))
    gate = Gate()

    @engine.task(cost=Resources(cpu=1))
    async def hold() -> None:
        await gate.hold()

    @engine.task(cost=Resources(cpu=1))
    async def fail() -> None:
        raise ValueError("as it must")

    async with engine.worker():
        held, cancelled = await hold.enqueue(), await hold.enqueue()
        failed = await fail.enqueue()
        node = node_of(engine)
        await engine.wait(failed.id, timeout=PATIENCE_SECONDS)
        await cancelled.cancel()
        await engine.wait(cancelled.id, timeout=PATIENCE_SECONDS)
        await until(lambda: node.state().free["cpu"] == 2_000_000)
        assert node.state().holders == {"cpu": (held.id,)}
        await engine._stop_node(grace=0)
        assert node.state().free == node.state().totals
        assert (await held.status()).state is State.READY


async def test_kinds_without_tasks_are_not_asked_for(new_engine: NewEngine, sqlite_url: str) -> None:
    """Two hundred kinds, one of them used: each claim asks for that one."""
    engine = new_engine(sqlite_url, resources=Resources(cpu=2))
    asked: list[int] = []

    async def body() -> None:
        """Nothing to do."""

    for number in range(200):
        engine.task(name=f"kind{number}", cost=Resources(cpu=1))(body)

    async with engine.worker(drain=True):
        node = node_of(engine)
        await until(lambda: not node.scheduler._dirty)
        request = node._admission.request

        def noted(node_id: str, wanted: set[str]) -> object:
            found = request(node_id, wanted)
            asked.append(0 if found is None else len(found.kinds))
            return found

        node._admission.request = noted  # type: ignore[method-assign,assignment]  # put in its place
        await engine.kinds["kind7"].enqueue_many([()] * 50)
    assert max(asked) == 1


async def test_a_node_that_cannot_run_what_it_stores_tells_one_that_can(new_engine: NewEngine, sqlite_url: str) -> None:
    """Both sweep so rarely that only the hint can be in time."""
    here = new_engine(sqlite_url, labels={"zone:us"}, listen="127.0.0.1:0")
    there = new_engine(sqlite_url, labels={"zone:eu"}, listen="127.0.0.1:0")

    async def note() -> str:
        return "done"

    for engine in (here, there):
        engine.task(note)
    async with here.worker(), there.worker():
        await until(lambda: here.peers is not None and len(list(here.peers._router.directory)) == 1)
        handle = await here.kinds["note"].with_options(needs={"zone:eu"}).enqueue()
        assert await handle.result(timeout=PATIENCE_SECONDS) == "done"
        later = await here.kinds["note"].with_options(needs={"zone:eu"}, delay=0.05).enqueue()
        assert await later.result(timeout=PATIENCE_SECONDS) == "done"


async def test_a_drain_does_not_wait_for_what_only_another_node_can_run(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(gpu=0))
    ran: list[str] = []

    @engine.task
    async def note(name: str) -> None:
        ran.append(name)

    async with asyncio.timeout(PATIENCE_SECONDS), engine:
        async with engine.worker(drain=True):
            await note.with_options(needs={"elsewhere"}).enqueue("labelled")
            await note.with_options(cost=Resources(gpu=1)).enqueue("costly")
            await note.with_options(delay=0.05).enqueue("late")
        assert (await engine.counts())[State.READY] == 2
    assert ran == ["late"]


async def test_what_is_announced_of_thousands_of_demands_is_counted_once(
    new_engine: NewEngine, sqlite_url: str
) -> None:
    """By counting, not by the clock: a count for each of them made the loop stand still."""
    engine = new_engine(sqlite_url, resources=Resources(ram="1GiB"), listen="127.0.0.1:0")

    @engine.task
    async def note() -> None:
        """Nothing to do."""

    ready_groups = [
        ("note", "default", make_requirements({"ram": 10 + number}, frozenset(), frozenset()).text)
        for number in range(2000)
    ]
    async with engine.worker(concurrency=3):
        neighbours = node_of(engine).hints
        profile = Profile()
        profile.runcall(neighbours.offer, dict.fromkeys(ready_groups, 1), is_open=True)
        assert neighbours._expected == dict.fromkeys(ready_groups[:3], 1), "what it cannot take is not remembered"
    # The stubs of pstats lack the attribute.
    calls = {name: found[0] for (_, _, name), found in Stats(profile).stats.items()}  # type: ignore[attr-defined]
    assert (calls["total"], calls["_take"]) == (2, 2000)
