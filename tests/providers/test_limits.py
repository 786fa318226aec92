"""Limits over all nodes: by prefix, by kind, by name, by key; all that apply hold together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.providers.crowd import Crowd
from tests.support import PATIENCE_SECONDS, ended, until, until_state

from synergon import Engine, PayloadError, Reason, Server, State


async def test_a_prefix_holds_over_its_servers_and_each_ones_own_capacity_too(engine: Engine) -> None:
    crowd = Crowd()
    engine.limit("https://api.example.com", 10)
    pool = engine.provider("pool", servers={"https://api.example.com/v1": 8, "https://api.example.com/v2": 8})

    @pool.task
    async def work(server: Server) -> None:
        await crowd.pass_through("all", server.address, seconds=0.005)

    async with engine.worker():
        for handle in await work.enqueue_many([() for _ in range(100)]):
            await handle.result(PATIENCE_SECONDS)
    assert crowd.most["all"] == 10
    assert crowd.most["https://api.example.com/v1"] <= 8
    assert crowd.most["https://api.example.com/v2"] <= 8


async def test_a_rule_for_one_host_does_not_touch_another_whose_name_begins_alike(engine: Engine) -> None:
    crowd = Crowd()
    engine.limit("http://server1", 1)
    pool = engine.provider("pool", servers={"http://server1": 5, "http://server10": 5})

    @pool.task
    async def work(server: Server) -> None:
        await crowd.hold(server.address)

    async with engine.worker():
        handles = await work.enqueue_many([() for _ in range(12)])
        await crowd.until_inside("http://server10", 5)
        await crowd.until_inside("http://server1", 1)
        crowd.open()
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
    assert crowd.most["http://server1"] == 1
    assert crowd.most["http://server10"] == 5


async def test_a_limit_that_is_lowered_waits_for_running_work_and_a_raised_one_is_used_at_once(engine: Engine) -> None:
    crowd = Crowd()
    gates = [asyncio.Event() for _ in range(40)]
    engine.limit("license", 4)

    @engine.task(limits=["license"])
    async def work(number: int) -> None:
        with crowd.inside("license"):
            await gates[number].wait()

    async with engine.worker():
        handles = await work.enqueue_many([(number,) for number in range(40)])
        await crowd.until_inside("license", 4)
        await engine.set_limit("license", 3)
        for number in range(3):
            gates[number].set()
            await handles[number].result(PATIENCE_SECONDS)
        await crowd.until_inside("license", 3)
        assert crowd.most["license"] == 4
        assert crowd.now["license"] == 3
        await engine.set_limit("license", 8)
        await crowd.until_inside("license", 8)
        await engine.set_limit("license", 0)
        for gate in gates[:11]:
            gate.set()
        await until(lambda: crowd.now["license"] == 0)
        await engine.set_limit("license", None)
        await crowd.until_inside("license", 29)
        for gate in gates:
            gate.set()
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
    assert crowd.most["license"] == 29


async def test_a_name_shared_between_kinds_is_counted_once_and_hides_nothing(engine: Engine) -> None:
    crowd = Crowd()
    engine.limit("license", 2)

    @engine.task(limits=["license"])
    async def first() -> None:
        await crowd.hold("license")

    @engine.task(limits=["license"])
    async def second() -> None:
        await crowd.hold("license")

    @engine.task
    async def free() -> str:
        return "ran"

    async with engine.worker():
        handles = [*await first.enqueue_many([(), (), ()]), *await second.enqueue_many([(), (), ()])]
        await crowd.until_inside("license", 2)
        assert await (await free.enqueue()).result(PATIENCE_SECONDS) == "ran"
        (limit,) = await engine.limits()
        assert (limit.name, limit.value, limit.in_use) == ("license", 2, 2)
        crowd.open()
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
    assert crowd.most["license"] == 2


async def test_a_kind_has_a_limit_of_its_own_over_the_cluster(engine: Engine) -> None:
    crowd = Crowd()

    @engine.task(max_running_global=3)
    async def work() -> None:
        await crowd.pass_through("work", seconds=0.005)

    async with engine.worker():
        for handle in await work.enqueue_many([() for _ in range(30)]):
            await handle.result(PATIENCE_SECONDS)
        await engine.set_limit("kind:work", 1)
        crowd.most.clear()
        for handle in await work.enqueue_many([() for _ in range(10)]):
            await handle.result(PATIENCE_SECONDS)
    assert crowd.most["work"] == 1


@pytest.mark.parametrize("by", ["function", "template"])
async def test_each_key_has_its_own_line_and_none_starves(engine: Engine, by: str) -> None:
    crowd = Crowd()

    @engine.task(limit_by=(lambda customer: f"c{customer}") if by == "function" else "c{customer}", limit=2)
    async def work(customer: int, number: int = 0) -> None:
        name = f"c{customer}"
        with crowd.inside(name):  # one after the other, once it was seen that two may be in there
            await until(lambda: crowd.most[name] >= 2)

    async with engine.worker():
        handles = await work.enqueue_many([(number % 7, number) for number in range(140)])
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
        assert (await handles[0].status()).limit_key == "c0"
    assert set(crowd.most.values()) == {2}
    assert set(crowd.ever.values()) == {20}


async def test_tasks_beyond_the_limit_of_their_key_are_waiting_and_hide_nobody(engine: Engine) -> None:
    crowd = Crowd()

    @engine.task(limit_by="{customer}", limit=1)
    async def work(customer: str) -> None:
        await crowd.hold(customer)

    async with engine.worker():
        busy = await work.enqueue_many([("busy",) for _ in range(200)])
        await crowd.until_inside("busy", 1)
        other = await work.enqueue("other")
        await crowd.until_inside("other", 1)
        assert (await engine.counts())[State.WAITING] == 199
        crowd.open()
        await other.result(PATIENCE_SECONDS)
        for handle in busy:
            await handle.result(PATIENCE_SECONDS)
    assert crowd.most == {"busy": 1, "other": 1}


async def test_a_better_priority_goes_first_among_those_that_wait(engine: Engine) -> None:
    crowd, order = Crowd(), list[int]()

    @engine.task(limit_by="{customer}", limit=1)
    async def work(customer: str, number: int) -> None:
        order.append(number)
        await crowd.hold("one")

    async with engine.worker():
        handles = [await work.enqueue("x", 0)]
        await crowd.until_inside("one", 1)
        handles += [await work.with_options(priority=number).enqueue("x", number) for number in (1, 3, 2)]
        crowd.open()
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
    assert order == [0, 3, 2, 1]


async def test_waiting_tasks_cost_no_coroutine_and_none_fails_for_waiting(engine: Engine) -> None:
    crowd = Crowd()
    engine.limit("one", 1)

    @engine.task(limits=["one"])
    async def work() -> None:
        await crowd.pass_through("one")

    async with engine.worker():
        handles = await work.enqueue_many([() for _ in range(200)])
        most_tasks = 0
        while (await engine.counts())[State.SUCCEEDED] < 200:
            most_tasks = max(most_tasks, len(asyncio.all_tasks()))
            await asyncio.sleep(0)
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
    assert crowd.most["one"] == 1
    assert most_tasks < 60


async def test_the_same_key_submitted_often_while_it_waits_is_one_task(engine: Engine) -> None:
    crowd = Crowd()

    @engine.task(limit_by="{customer}", limit=1)
    async def work(customer: str, number: int = 0) -> None:
        await crowd.hold(customer)

    async with engine.worker():
        first = await work.enqueue("x")
        await crowd.until_inside("x", 1)
        waiting = [await work.with_options(key="only").enqueue("x", number) for number in range(200)]
        assert len({handle.id for handle in waiting}) == 1
        assert (await waiting[0].status()).state is State.WAITING
        crowd.open()
        await waiting[0].result(PATIENCE_SECONDS)
        await first.result(PATIENCE_SECONDS)
    assert crowd.ever["x"] == 2


async def test_a_task_that_waits_for_its_line_can_always_be_cancelled(engine: Engine) -> None:
    crowd = Crowd()

    @engine.task(limit_by="{customer}", limit=1)
    async def work(customer: str) -> None:
        await crowd.hold(customer)

    async with engine.worker():
        first = await work.enqueue("x")
        await crowd.until_inside("x", 1)
        waiting = await work.enqueue_many([("x",) for _ in range(100)])
        assert all([await handle.cancel() for handle in waiting])
        assert {(await handle.status()).state for handle in waiting} == {State.CANCELLED}
        crowd.open()
        await first.result(PATIENCE_SECONDS)
    assert crowd.ever["x"] == 1


async def test_a_call_by_name_is_put_in_line_by_the_node_that_knows_the_kind(engine: Engine, url: str) -> None:
    crowd = Crowd()

    @engine.task(limit_by="{customer}", limit=1)
    async def work(customer: str) -> None:
        await crowd.pass_through(customer, seconds=0.002)

    producer = Engine(url, sweep=60)
    async with producer, engine.worker():
        calls = [producer.call("work", customer="x") for _ in range(20)]
        handles = await producer.enqueue(calls)
        bad = await producer.enqueue([producer.call("work", wrong=1)])
        for handle in handles:
            record = await engine.wait(handle.id, timeout=PATIENCE_SECONDS)
            assert record.state is State.SUCCEEDED
            assert record.attempts == 1
            assert record.limit_key == "x"
        record = await engine.wait(bad[0].id, timeout=PATIENCE_SECONDS)
        assert record.reason is Reason.ERROR
    assert crowd.most["x"] == 1


async def test_a_limit_function_that_raises_or_returns_nonsense_fails_that_task_clearly(
    engine: Engine, url: str
) -> None:
    def key_of(customer: str) -> Any:
        return None if customer == "none" else {"x": "fine"}[customer]

    @engine.task(limit_by=key_of, limit=1)
    async def work(customer: str) -> None: ...

    async with Engine(url, sweep=60) as producer, engine.worker():
        with pytest.raises(PayloadError, match="limit_by of task 'work' raised KeyError"):
            await work.enqueue("y")
        with pytest.raises(PayloadError, match="must return text"):
            await work.enqueue("none")
        (elsewhere,) = await producer.enqueue([producer.call("work", customer="y")])
        record = await engine.wait(elsewhere.id, timeout=PATIENCE_SECONDS)
        assert record.state is State.FAILED
        assert record.error is not None
        assert "limit_by of task 'work' raised KeyError" in record.error.message
        await (await work.enqueue("x")).result(PATIENCE_SECONDS)


async def test_lines_go_on_after_failures_retries_and_crashed_waits(engine: Engine) -> None:
    @engine.task(limit_by="{customer}", limit=1, retry=3)
    async def work(customer: str, fails: bool) -> None:
        if fails:
            raise ValueError("no")

    fast = work.with_options(retry=2)
    async with engine.worker():
        handles = [await fast.enqueue("x", number % 2 == 0) for number in range(4)]
        last = await work.enqueue("x", False)
        await ended(last)
        for handle in handles:
            await until_state(handle, State.SUCCEEDED, State.FAILED, State.SCHEDULED)
