"""`keep` and `keep_result`: how long tasks of a kind remain, and whether their results are stored."""

from __future__ import annotations

import asyncio

import pytest
from tests.node import process_functions
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, all_tasks

from synergon import Engine, OptionError, TaskNotFound


async def test_tasks_of_a_kind_are_kept_as_long_as_it_says(engine: Engine) -> None:
    @engine.task(keep=0)
    async def poll() -> None: ...

    @engine.task(keep="1h")
    async def report() -> None: ...

    async with engine:
        polled = await poll.with_options(tags=["a"]).enqueue()
        reported = await report.enqueue()
        async with engine.worker(drain=True):
            await reported.result(PATIENCE_SECONDS)
        await asyncio.sleep(0.005)
        assert await engine.prune(succeeded=0) == 1
        assert [task.id for task in await all_tasks(engine)] == [reported.id]
        with pytest.raises(TaskNotFound):
            await engine.get(polled.id)


@pytest.mark.parametrize("runs_in", ["loop", "process"])
async def test_a_result_that_is_not_kept_is_none(engine: Engine, runs_in: str) -> None:
    seen: list[object] = []
    if runs_in == "process":
        add = on(engine, process_functions.add, keep_result=False)
    else:

        @engine.task(name="add", keep_result=False, on_success=lambda ctx, seconds, result: seen.append(result))
        async def add_here(first: int, second: int) -> int:
            return first + second

        add = add_here
    async with engine.worker():
        handle = await add.enqueue(1, 2)
        assert await handle.result(PATIENCE_SECONDS) is None
        record = await engine.get(handle.id)
    assert record.result is None
    assert seen in ([], [None])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "long"}, 'keep must be seconds or a duration like "500ms"'),
        ({"keep": -1}, "keep must be not negative, got -1"),
        ({"keep_result": 1}, "keep_result must be True or False, got 1"),
        ({"ignore_result": True}, "write keep_result=False"),
    ],
)
def test_other_values_are_refused(options: dict[str, object], message: str) -> None:
    engine = Engine("memory://")
    with pytest.raises(OptionError, match=message):
        engine.task(name="poll", **options)(lambda: None)  # type: ignore[call-overload]
