"""`ctx.items`: the tasks of a batch, with their metadata, wherever the function runs."""

from __future__ import annotations

import pytest
from tests.node import process_functions
from tests.support import PATIENCE_SECONDS

from synergon import Batch, Context, Engine
from synergon.options.overrides import RunsIn


@pytest.mark.parametrize("runs_in", ["thread", "process"])
async def test_a_batch_knows_the_tasks_of_its_items(engine: Engine, runs_in: RunsIn) -> None:
    names = process_functions.on(
        engine, process_functions.describe_items, batch=Batch(size=3, wait=60), runs_in=runs_in
    )
    async with engine.worker():
        handles = [await names.with_options(meta={"name": name}).enqueue(0) for name in ("a", "b", "c")]
        found = [await handle.result(PATIENCE_SECONDS) for handle in handles]
    assert found == [[handle.id, 1, name] for handle, name in zip(handles, ("a", "b", "c"), strict=True)]


async def test_a_task_that_runs_alone_has_one_item(engine: Engine) -> None:
    @engine.task
    async def name(ctx: Context) -> list[object]:
        return [[item.task_id, item.attempt, item.meta] for item in ctx.items]

    async with engine.worker():
        handle = await name.with_options(meta={"name": "a"}).enqueue()
        assert await handle.result(PATIENCE_SECONDS) == [[handle.id, 1, {"name": "a"}]]
