"""Groups: counted, awaited and cancelled as a whole, with one task that runs when all of them have ended."""

from __future__ import annotations

import asyncio

import pytest
from tests.conftest import NewEngine
from tests.providers.crowd import Crowd
from tests.support import PATIENCE_SECONDS, ended, until

from synergon import Engine, Group, KeyConflict, OptionError, ResultTimeout, State, TaskFailed


async def test_a_group_is_counted_and_gives_its_results_in_the_order_of_its_calls(engine: Engine) -> None:
    crowd = Crowd()

    @engine.task
    async def double(number: int) -> int:
        await crowd.hold("in")
        return 2 * number

    async with engine.worker():
        group = await engine.group("doubles", [double.call(number) for number in range(5)])
        await crowd.until_inside("in", 5)
        assert (await group.counts())[State.RUNNING] == 5
        assert (await group.status()).open == 5
        with pytest.raises(ResultTimeout, match=f"group {group.id} had not ended after 0.01 s; its tasks go on"):
            await group.wait(0.01)
        crowd.open()
        assert await group.results(PATIENCE_SECONDS) == [0, 2, 4, 6, 8]
        record = await group.status()
        assert {(await handle.status()).group_id for handle in group.handles} == {group.id}
    assert (record.name, record.open, record.counts) == ("doubles", 0, {State.SUCCEEDED: 5})
    assert record.ended_at is not None


async def test_then_runs_once_all_have_ended_however_they_did(engine: Engine) -> None:
    order: list[str] = []

    @engine.task
    async def part(number: int) -> None:
        await asyncio.sleep(0.002 * number)
        order.append("part")
        if number == 1:
            raise ValueError("no")

    @engine.task
    async def total(name: str) -> str:
        order.append("total")
        return name

    async with engine.worker():
        group = await engine.group("parts", [part.call(number) for number in range(4)], then=total.call("all"))
        assert group.then is not None
        assert await group.then.result(PATIENCE_SECONDS) == "all"
        assert (await group.status()).then_id == group.then.id
        with pytest.raises(TaskFailed, match="no"):
            await group.results()
    assert order == ["part"] * 4 + ["total"]


async def test_then_waits_and_is_no_member(engine: Engine) -> None:
    crowd = Crowd()

    @engine.task
    async def part() -> None:
        await crowd.hold("in")

    @engine.task
    async def total() -> None: ...

    async with engine.worker():
        group = await engine.group("parts", [part.call()], then=total.call())
        await crowd.until_inside("in", 1)
        assert group.then is not None
        record = await group.then.status()
        assert (record.state, record.is_dependent) == (State.WAITING, True)
        assert sum((await group.counts()).values()) == 1
        crowd.open()
        await group.then.result(PATIENCE_SECONDS)


async def test_an_empty_group_has_ended_and_its_then_runs(engine: Engine) -> None:
    @engine.task
    async def total() -> str:
        return "nothing to add"

    async with engine.worker():
        group: Group[None] = await engine.group("none", [], then=total.call())
        assert group.then is not None
        assert await group.then.result(PATIENCE_SECONDS) == "nothing to add"
        assert (await group.wait(PATIENCE_SECONDS)).ended_at is not None
        assert await group.results() == []


async def test_a_group_is_cancelled_as_a_whole_running_ones_included(engine: Engine) -> None:
    crowd, ran = Crowd(), list[str]()
    engine.limit("two", 2)

    @engine.task(limits=["two"])
    async def part() -> None:
        await crowd.hold("in")

    @engine.task
    async def total() -> None:
        ran.append("total")

    async with engine.worker():
        group = await engine.group("parts", [part.call() for _ in range(20)], then=total.call())
        await crowd.until_inside("in", 2)
        assert await group.cancel("not needed") == 20
        record = await group.wait(PATIENCE_SECONDS)
        assert record.counts == {State.CANCELLED: 20}
        assert await group.cancel() == 0
        assert group.then is not None
        await group.then.result(PATIENCE_SECONDS)
    assert ran == ["total"]


async def test_a_group_is_worked_on_and_awaited_across_two_engines(new_engine: NewEngine, sqlite_url: str) -> None:
    ran: dict[str, int] = {"one": 0, "two": 0}
    engines = {name: new_engine(sqlite_url, name=name, concurrency=2, sweep=0.2) for name in ran}
    for name, engine in engines.items():

        @engine.task(name="part")
        async def part(number: int, name: str = name) -> int:
            ran[name] += 1
            await asyncio.sleep(0.01)
            return number

        @engine.task(name="total")
        async def total() -> int:
            return sum(ran.values())

    producer = new_engine(sqlite_url)
    async with producer, engines["one"].worker(), engines["two"].worker():
        group = await producer.group(
            "parts", [producer.call("part", number=number) for number in range(40)], then=producer.call("total")
        )
        assert (await group.wait(PATIENCE_SECONDS)).counts == {State.SUCCEEDED: 40}
        assert group.then is not None
        assert await group.then.result(PATIENCE_SECONDS) == 40
    assert sum(ran.values()) == 40


async def test_then_whose_key_is_held_is_refused_and_nothing_is_stored(engine: Engine) -> None:
    @engine.task
    async def part() -> None: ...

    @engine.task
    async def total() -> None: ...

    taken, own = total.with_options(key="sum").call(), total.with_options(key="own").call()
    async with engine:
        holder = await total.with_options(key="sum", delay=3600).enqueue()
        with pytest.raises(KeyConflict, match=r"'sum'.*another key") as caught:
            await engine.group("parts", [part.call()], then=taken)
        assert caught.value.task_id == holder.id
        with pytest.raises(KeyConflict, match=r"'own' of one of the group's own tasks"):
            await engine.group("parts", [part.call(), own], then=total.with_options(key="own").call())
        assert [task.id for task in await engine.tasks()] == [holder.id]


async def test_then_may_take_the_place_of_a_task_that_does_not_run(engine: Engine) -> None:
    order: list[str] = []

    @engine.task
    async def part() -> None:
        order.append("part")

    @engine.task
    async def total() -> None:
        order.append("total")

    async with engine:
        holder = await total.with_options(key="sum").enqueue()
        then = total.with_options(key="sum", on_conflict="replace").call()
        group = await engine.group("parts", [part.call(), part.call()], then=then)
        assert group.then is not None
        assert group.then.id == holder.id
        async with engine.worker():
            await group.then.result(PATIENCE_SECONDS)
    assert order == ["part", "part", "total"]


async def test_members_stand_in_lines_and_pools_like_all_tasks(engine: Engine) -> None:
    crowd = Crowd()
    pool = engine.provider("pool", servers={"a": 3})

    @pool.task(limit_by="{customer}", limit=1)
    async def part(customer: int) -> None:
        await crowd.pass_through("pool", f"c{customer}", seconds=0.002)

    async with engine.worker():
        group = await engine.group("parts", [part.call(number % 5) for number in range(30)])
        await group.wait(PATIENCE_SECONDS)
    assert crowd.most["pool"] <= 3
    assert {crowd.most[f"c{number}"] for number in range(5)} == {1}


async def test_a_member_that_is_deleted_counts_as_gone(engine: Engine) -> None:
    ran: list[str] = []

    @engine.task
    async def total() -> None:
        ran.append("total")

    async with engine:
        group = await engine.group("parts", [engine.call("nobody-runs-it") for _ in range(3)], then=total.call())
        for handle in group.handles:
            await engine.delete(handle.id)
        async with engine.worker():
            assert group.then is not None
            await ended(group.then)
            await until(lambda: ran == ["total"])
            await group.wait(PATIENCE_SECONDS)


def test_a_group_can_be_used_in_a_script(engine: Engine) -> None:
    @engine.task
    async def double(number: int) -> int:
        return 2 * number

    with engine:
        group = engine.sync_bridge.call(lambda: engine.group("doubles", [double.call(2)]))
        assert group.cancel_sync() == 1
        assert group.wait_sync(PATIENCE_SECONDS).counts == {State.CANCELLED: 1}


async def test_an_invalid_group_is_rejected_and_not_stored(engine: Engine) -> None:
    @engine.task
    async def part() -> None: ...

    async with engine:
        with pytest.raises(OptionError, match="a group's name"):
            await engine.group("", [part.call()])
        with pytest.raises(OptionError, match="conn cannot be given for tasks of a group"):
            await engine.group("parts", [part.call().with_options(conn=object())])
        with pytest.raises(OptionError):
            await engine.group("parts", [part])  # type: ignore[arg-type]  # wrong on purpose
        assert sum((await engine.counts()).values()) == 0
