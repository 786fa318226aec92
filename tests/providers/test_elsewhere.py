"""What happens on one engine is known on the others at once. They sweep once a minute, and no test waits for that."""

from __future__ import annotations

import asyncio

import pytest
from tests.conftest import NewEngine
from tests.providers.crowd import Crowd
from tests.support import PATIENCE_SECONDS, ended, until, until_state

from synergon import Engine, State


@pytest.fixture(name="url", params=("sqlite", "postgres"))
def shared_url(request: pytest.FixtureRequest) -> str:
    """Stores that engines can share."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def other(new_engine: NewEngine, url: str) -> Engine:
    """Another engine on the same store."""
    return new_engine(url)


async def test_a_limit_that_is_raised_elsewhere_is_used_at_once(engine: Engine, other: Engine) -> None:
    crowd = Crowd()
    engine.limit("license", 0)

    @engine.task(limits=["license"])
    async def work() -> None:
        await crowd.hold("in")

    async with other, engine.worker():
        await other.enqueue([other.call("work") for _ in range(4)])
        await asyncio.sleep(0.1)
        assert crowd.now["in"] == 0
        await other.set_limit("license", 2)
        await crowd.until_inside("in", 2)
        await other.set_limit("license", None)
        await crowd.until_inside("in", 4)
        crowd.open()


async def test_servers_that_are_added_elsewhere_are_used_at_once(engine: Engine, other: Engine) -> None:
    pool = engine.provider("pool")

    @pool.task
    async def work() -> str:
        return "done"

    async with other, engine.worker():
        (handle,) = await other.enqueue([other.call("work")])
        await asyncio.sleep(0.1)
        await other.set_servers("pool", ["new"])
        assert await handle.result(PATIENCE_SECONDS) == "done"


async def test_a_place_that_is_freed_here_is_taken_there(engine: Engine, other: Engine) -> None:
    crowd = Crowd()
    for one, kind in ((engine, "here"), (other, "there")):
        one.limit("license", 1)
        one.task(name=kind, limits=["license"])(lambda: None)

    @engine.task(limits=["license"])
    async def hold() -> None:
        await crowd.hold("in")

    async with engine.worker(), other.worker():
        holding = await hold.enqueue()
        await crowd.until_inside("in", 1)
        (there,) = await engine.enqueue([engine.call("there")])
        await asyncio.sleep(0.1)
        assert (await there.status()).state is State.READY
        crowd.open()
        await holding.result(PATIENCE_SECONDS)
        assert (await ended(there)).state is State.SUCCEEDED


async def test_what_waits_for_a_group_runs_at_once_on_another_node(engine: Engine, other: Engine) -> None:
    @engine.task
    async def part() -> None: ...

    @other.task
    async def total() -> str:
        return "all"

    async with engine.worker(), other.worker():
        group = await engine.group("parts", [part.call() for _ in range(5)], then=engine.call("total"))
        assert group.then is not None
        assert await group.then.result(PATIENCE_SECONDS) == "all"
        await until(lambda: _has_ended(engine, "total"))


async def _has_ended(engine: Engine, kind: str) -> bool:
    return (await engine.counts(kind=kind))[State.SUCCEEDED] == 1


async def test_a_cancel_elsewhere_of_the_last_member_releases_what_waits(engine: Engine, other: Engine) -> None:
    @engine.task
    async def total() -> str:
        return "all"

    async with other, engine.worker():
        group = await other.group("parts", [other.call("nobody-runs-it")], then=other.call("total"))
        assert await group.cancel() == 1
        assert group.then is not None
        assert await group.then.result(PATIENCE_SECONDS) == "all"


async def test_whoever_stands_behind_a_task_that_is_cancelled_elsewhere_moves_up(engine: Engine, other: Engine) -> None:
    crowd = Crowd()

    @engine.task(limit_by="{customer}", limit=1)
    async def work(customer: str, number: int) -> int:
        if number == 0:
            await crowd.hold("in")
        return number

    async with other, engine.worker():
        first = await work.enqueue("x", 0)
        await crowd.until_inside("in", 1)
        await engine.pause("default")
        crowd.open()
        await first.result(PATIENCE_SECONDS)
        second, third = await work.enqueue("x", 1), await work.enqueue("x", 2)
        await other.cancel(second.id)
        await other.resume("default")
        assert await third.result(PATIENCE_SECONDS) == 2
        assert (await second.status()).state is State.CANCELLED


async def test_a_node_is_cordoned_uncordoned_and_stopped_from_elsewhere(engine: Engine, other: Engine) -> None:
    @engine.task
    async def work() -> str:
        return "done"

    async with other:
        async with engine.worker() as node:
            (record,) = await other.nodes()
            await other.cordon(record.id)
            await until(lambda: node.scheduler.is_cordoned)
            (handle,) = await other.enqueue([other.call("work")])
            await asyncio.sleep(0.1)
            assert (await handle.status()).state is State.READY
            await other.uncordon(record.id)
            assert await handle.result(PATIENCE_SECONDS) == "done"
            await other.shut_down(record.id)
            await asyncio.wait_for(node.stopped(), PATIENCE_SECONDS)
        assert [order.outcome for order in await other.audit()] == ["stops", "takes work again", "cordoned"]


async def test_a_command_that_waits_is_told_by_whoever_takes_its_server_away(engine: Engine, other: Engine) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers=["old"])

    @pool.task
    async def work() -> None:
        await crowd.hold("in")

    @pool.command
    async def ask() -> None: ...

    async with other, engine.worker():
        busy = await work.enqueue()
        await crowd.until_inside("in", 1)
        (handle,) = (await ask.enqueue(to="old")).values()
        waiting = asyncio.ensure_future(ended(handle))
        await until_state(handle, State.READY)
        await other.set_servers("pool", ["new"])
        assert (await waiting).state is State.FAILED
        crowd.open()
        await busy.result(PATIENCE_SECONDS)
