"""Bounds of a worker: at most so many tasks of a queue, and of a provider, at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url
from tests.providers.crowd import Crowd
from tests.support import PATIENCE_SECONDS, until

from synergon import Engine, Resources, State, Why
from synergon.model.requirements import is_name_of_bound

__all__ = ["every_url"]


async def all_done(handles: list[Any]) -> None:
    for handle in handles:
        await handle.result(PATIENCE_SECONDS)


async def test_no_more_tasks_of_a_queue_run_at_once_than_its_bound(engine: Engine) -> None:
    crowd = Crowd()

    @engine.task(queue="mail")
    async def send() -> None:
        await crowd.pass_through("mail", seconds=0.002)

    @engine.task(queue="video")
    def cut() -> None:
        with crowd.inside("video"):
            pass

    @engine.task(queue="mail", cost=Resources(cpu=0.1))
    async def weigh() -> None:
        await crowd.pass_through("mail", seconds=0.002)

    async with engine.worker(queues={"mail": 3, "video": 1}, concurrency=10):
        handles = [handle for body in (send, cut, weigh) for handle in await body.enqueue_many([()] * 20)]
        await all_done(handles)
    assert crowd.most == {"mail": 3, "video": 1}


async def test_a_queue_at_its_bound_leaves_the_other_slots_to_others(engine: Engine) -> None:
    crowd = Crowd()

    @engine.task
    async def hold(name: str) -> None:
        await crowd.hold(name)

    async with engine.worker(queues={"mail": 2, "default": None}, concurrency=5):
        slow = await hold.with_options(queue="mail", priority=9).enqueue_many([("mail",)] * 8)
        await crowd.until_inside("mail", 2)
        others = await hold.enqueue_many([("default",)] * 3)
        await crowd.until_inside("default", 3)
        assert crowd.now["mail"] == 2
        crowd.open()
        await all_done([*slow, *others])
    assert crowd.most["mail"] <= 2


async def test_the_next_task_starts_when_one_of_its_queue_ends_and_no_sweep_is_needed(engine: Engine) -> None:
    ended = asyncio.Semaphore(0)
    began: list[int] = []

    @engine.task(queue="mail")
    async def send(number: int) -> None:
        began.append(number)
        await ended.acquire()

    async with engine.worker(queues={"mail": 1}, concurrency=4):
        handles = await send.enqueue_many([(number,) for number in range(4)])
        for number in range(4):
            await until(lambda: len(began) > number)  # noqa: B023  awaited within the round
            assert began == list(range(number + 1))
            ended.release()
        await all_done(handles)


async def test_an_idle_providers_first_task_starts_while_a_backlog_uses_its_slots(engine: Engine) -> None:
    crowd = Crowd()
    busy = engine.provider("busy", servers={"everything": None}, slots=3)
    idle = engine.provider("idle", servers={"elsewhere": None})

    @busy.task
    async def drag() -> None:
        await crowd.hold("busy")

    @busy.task
    async def pull() -> None:
        await crowd.hold("busy")

    @idle.task
    async def answer() -> str:
        return "at once"

    async with engine.worker(concurrency=4):
        backlog = [*await drag.enqueue_many([()] * 10), *await pull.enqueue_many([()] * 10)]
        await crowd.until_inside("busy", 3)
        first = await answer.enqueue()
        assert await first.result(PATIENCE_SECONDS) == "at once"
        assert crowd.now["busy"] == 3
        crowd.open()
        await all_done(backlog)
    assert crowd.most["busy"] == 3


async def test_bounds_hold_together_and_with_urgent_tasks(engine: Engine) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers={"any": None}, slots=2)

    @pool.task(preemptible=True, queue="slow")
    async def background() -> None:
        await crowd.pass_through("pool", "slow", seconds=0.005)

    @pool.task(urgent=True)
    async def alarm() -> None:
        await crowd.pass_through("pool", "default", seconds=0.001)

    async with engine.worker(queues={"slow": 2, "default": 1}, concurrency=8):
        handles = [handle for body in (background, alarm) for handle in await body.enqueue_many([()] * 15)]
        await all_done(handles)
    assert crowd.most["pool"] <= 2
    assert crowd.most["default"] == 1


async def test_a_command_needs_no_slot_of_its_provider(engine: Engine) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers={"any": None}, slots=1)

    @pool.task
    async def work() -> None:
        await crowd.hold("pool")

    @pool.command
    async def ping() -> str:
        return "pong"

    async with engine.worker(queues={"default": 1}):
        handle = await work.enqueue()
        await crowd.until_inside("pool", 1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await ping.send() == "pong"
        crowd.open()
        await handle.result(PATIENCE_SECONDS)


async def test_a_task_with_requirements_is_not_kept_from_its_reservation_by_a_bound(new_engine: NewEngine) -> None:
    """A full bound reserves nothing, and what is beside it goes on."""
    engine = new_engine("memory://", resources=Resources(cpu=2), concurrency=4)
    crowd = Crowd()

    @engine.task(queue="mail", cost=Resources(cpu=1))
    async def send() -> None:
        await crowd.hold("mail")

    @engine.task(cost=Resources(cpu=1))
    async def other() -> str:
        return "done"

    async with engine.worker(queues={"mail": 1, "default": None}):
        assert engine._node is not None
        engine._node.reservation.patience = 0
        handles = await send.enqueue_many([()] * 3)
        await crowd.until_inside("mail", 1)
        for _ in range(5):
            assert await (await other.enqueue()).result(PATIENCE_SECONDS) == "done"
        assert engine._node.reservation.reserved is None
        crowd.open()
        await all_done(handles)


async def test_a_drain_waits_for_tasks_that_a_bound_holds_back(engine: Engine) -> None:
    @engine.task(queue="mail")
    async def send() -> None: ...

    async with engine:
        await send.enqueue_many([()] * 7)
        async with engine.worker(queues={"mail": 1}, drain=True):
            pass
        assert (await engine.counts())[State.SUCCEEDED] == 7


async def test_the_status_of_a_node_shows_its_bounds_and_what_is_free(engine: Engine) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers={"any": None}, slots=3)

    @pool.task(queue="mail")
    async def send() -> None:
        await crowd.hold("mail")

    async with engine.worker(queues={"mail": 2, "other": None}):
        handle = await send.enqueue()
        await crowd.until_inside("mail", 1)
        assert engine._node is not None
        state = engine._node.state()
        bounds = {name: (state.free[name], total) for name, total in state.totals.items() if is_name_of_bound(name)}
        assert bounds == {"queue mail": (1_000_000, 2_000_000), "provider pool": (2_000_000, 3_000_000)}
        crowd.open()
        await handle.result(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("settings", "why", "sentence"),
    [
        ({"queues": {"mail": 1}}, Why.QUEUE_BOUND, "runs 1 of at most 1 of queue mail"),
        ({}, Why.PROVIDER_BOUND, "runs 1 of at most 1 of provider pool"),
    ],
)
async def test_explain_names_the_bound_and_who_uses_it(
    engine: Engine, settings: dict[str, Any], why: Why, sentence: str
) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers={"any": None}, slots=None if settings else 1)

    @pool.task(queue="mail")
    async def send() -> None:
        await crowd.hold("mail")

    async with engine.worker(name="here", **settings):
        first, second = await send.enqueue_many([()] * 2)
        await crowd.until_inside("mail", 1)
        explanation = await engine.explain(second.id)
        (cause,) = explanation.nodes[0].causes
        assert (cause.why, cause.in_use, cause.of, cause.tasks) == (why, 1, 1, (first.id,))
        assert explanation.sentence.endswith(f"1 node runs `send`: here {sentence}")
        crowd.open()
        await all_done([first, second])


async def test_a_plain_worker_has_no_bounds(engine: Engine) -> None:
    @engine.task
    async def plain() -> None: ...

    async with engine.worker(queues=["default"]):
        assert engine._node is not None
        assert engine._node.runner._bounds == {}
        (request,) = [one for one, _ in engine._node._admission.kinds()]
        assert request.needs_only_slot
