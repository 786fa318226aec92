"""The warning that no live node could ever run a task: neither too often nor too seldom."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS

from synergon import Engine, Resources
from synergon.task import AnyTask


def work_on(engine: Engine) -> AnyTask:
    """The kind that all of them know."""

    async def work() -> str:
        return engine.settings.name

    return engine.task(cost=Resources(cpu=1))(work)


def costly(engine: Engine, **options: Any) -> Any:
    return engine.kinds["work"].with_options(cost=Resources(cpu=8), **options)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Since the last look."""
    found = [message for message in caplog.messages if "no live node" in message]
    caplog.clear()
    return found


@pytest.mark.parametrize("cpus", [(1, 16), (16, 1)])
async def test_of_nodes_with_the_same_name_each_counts(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture, cpus: tuple[int, int]
) -> None:
    first, second = (new_engine(url, sweep=0.05, name="worker", resources=Resources(cpu=cpu)) for cpu in cpus)
    producer = new_engine(url, sweep=0.05)
    for engine in (first, second, producer):
        work_on(engine)
    async with producer, first.worker(), second.worker():
        handle = await costly(producer).enqueue()
        assert warnings(caplog) == []
        assert await handle.result(PATIENCE_SECONDS) == "worker"


async def test_it_is_said_when_the_node_that_could_has_left_and_again_when_another_one_has(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    small, producer = new_engine(url, name="small", resources=Resources(cpu=1)), new_engine(url, sweep=0.05)
    engines = [new_engine(url, sweep=0.05, name=name, resources=Resources(cpu=16)) for name in ("big", "bigger")]
    for engine in (small, producer, *engines):
        work_on(engine)
    async with producer, small.worker():
        for engine in engines:
            async with engine.worker():
                producer._unrunnable_warning._read_at = None  # a heartbeat later
                await (await costly(producer).enqueue()).result(PATIENCE_SECONDS)
                assert warnings(caplog) == []
            for expected in (1, 0):
                producer._unrunnable_warning._read_at = None
                await costly(producer).enqueue()
                assert len(warnings(caplog)) == expected


async def test_what_gave_way_to_a_live_task_with_its_key_is_not_spoken_of(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url, name="small", resources=Resources(cpu=1))
    work_on(engine)
    async with engine, engine.worker():
        await engine.kinds["work"].with_options(key="k", delay=100).enqueue()
        twin = costly(engine, key="k")
        assert not (await twin.enqueue()).created
        assert not any(handle.created for handle in await engine.enqueue([twin.call()]))
        await engine.group("both", [twin.call()])
        assert warnings(caplog) == []
        assert not (await costly(engine, key="k", on_conflict="replace").enqueue()).created
        assert len(warnings(caplog)) == 1
