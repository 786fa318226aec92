"""Following one task until it ends."""

from __future__ import annotations

import asyncio

import pytest
from tests.support import PATIENCE_SECONDS

from synergon import Context, Engine, OptionError, Progress, State, TaskDeleted, TaskNotFound
from synergon.handle import Handle


async def test_updates_report_state_and_progress_up_to_the_end(engine: Engine) -> None:
    first_seen, half_seen, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @engine.task
    async def copy(ctx: Context) -> int:
        ctx.progress(0.5, "half")
        await half_seen.wait()
        ctx.progress(1)
        await may_end.wait()
        return 7

    seen: list[tuple[State, Progress | None]] = []

    async def follow(handle: Handle[int]) -> None:
        async for record in handle.updates(every="10ms"):
            seen.append((record.state, record.progress))
            first_seen.set()
            if record.progress is not None:
                (half_seen if record.progress.fraction < 1 else may_end).set()

    async with engine:
        handle = await copy.enqueue()
        following = asyncio.ensure_future(follow(handle))
        await first_seen.wait()
        async with engine.worker():
            await asyncio.wait_for(following, PATIENCE_SECONDS)
    assert seen[0] == (State.READY, None)
    assert seen[-1] == (State.SUCCEEDED, Progress(fraction=1))
    assert (State.RUNNING, Progress(fraction=0.5, message="half")) in seen
    assert len(seen) == len(set(seen)), "one for each change"


async def test_updates_of_an_ended_task_are_its_record(engine: Engine) -> None:
    @engine.task
    async def greet() -> None: ...

    async with engine.worker():
        handle = await greet.enqueue()
        await handle.result(PATIENCE_SECONDS)
        assert [record.state async for record in handle.updates()] == [State.SUCCEEDED]


async def test_updates_of_a_task_that_is_deleted_or_never_was_raise(engine: Engine) -> None:
    @engine.task
    async def greet() -> None: ...

    async with engine:
        handle = await greet.enqueue()
        updates = handle.updates(every="10ms")
        assert (await anext(updates)).state is State.READY
        await engine.delete(handle.id)
        with pytest.raises((TaskDeleted, TaskNotFound)):
            await anext(updates)
        with pytest.raises(TaskNotFound):
            await anext(Handle(engine, 999).updates())
        with pytest.raises(OptionError, match="every must be"):
            await anext(handle.updates(every=0))
