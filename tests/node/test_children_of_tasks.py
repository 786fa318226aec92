"""`ctx.enqueue`: children that exist if, and only if, their parent succeeded."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.every_store import every_url  # noqa: F401
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, all_tasks, ended, until

from synergon import Cancel, Context, Discard, Engine, Reason, Retry, Snooze, State


async def test_children_are_stored_with_the_success_of_their_parent_and_then_run(engine: Engine) -> None:
    ran: list[int] = []
    gate = Gate()

    @engine.task
    async def child(number: int) -> None:
        ran.append(number)

    @engine.task
    async def parent(ctx: Context) -> None:
        await ctx.enqueue(child.call(1))
        ctx.enqueue(child.call(2), child.with_options(delay=0.05).call(3))
        await gate.hold()

    async with engine.worker(drain=True):
        handle = await parent.enqueue()
        await gate.until_reached()
        assert [task.id for task in await all_tasks(engine)] == [handle.id]
        gate.open()
        await handle.result(PATIENCE_SECONDS)
        assert len(await all_tasks(engine)) == 4
    assert ran == [1, 2, 3]


@pytest.mark.parametrize(
    "end", ["failure", "discard", "cancel", "snooze", "timeout", "retry", "cancelled from outside"]
)
async def test_a_parent_that_does_not_succeed_has_no_children(engine: Engine, end: str) -> None:
    gate = Gate()

    @engine.task
    async def child() -> None: ...

    @engine.task(timeout=0.2 if end == "timeout" else None, retry=Retry(attempts=2, first=60) if end == "retry" else 1)
    async def parent(ctx: Context) -> None:
        ctx.enqueue(child.call(), child.call())
        match end:
            case "failure" | "retry":
                raise ValueError("after the enqueue")
            case "discard":
                raise Discard("after the enqueue")
            case "cancel":
                raise Cancel("after the enqueue")
            case "snooze":
                raise Snooze(60)
            case _:
                await gate.hold()

    async with engine.worker():
        handle = await parent.enqueue()
        if end == "cancelled from outside":
            await gate.until_reached()
            await handle.cancel()

        async def has_ended() -> bool:
            return (await handle.status()).state not in (State.READY, State.RUNNING)

        await until(has_ended)
        assert [task.kind for task in await all_tasks(engine)] == ["parent"]


async def test_a_success_that_comes_after_a_cancel_has_no_children(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def child() -> None: ...

    @engine.task
    async def parent(ctx: Context) -> str:
        ctx.enqueue(child.call())
        await gate.hold()
        return "done"

    async with engine.worker():
        handle = await parent.enqueue()
        await gate.until_reached()
        await engine._store.cancel([handle.id])  # by somebody whom this node does not hear
        gate.open()
        record = await ended(handle)
        assert (record.state, record.result) == (State.CANCELLED, None)
        assert [task.kind for task in await all_tasks(engine)] == ["parent"]


async def test_only_the_children_of_the_attempt_that_succeeded_exist(engine: Engine) -> None:
    @engine.task
    async def child(attempt: int) -> None: ...

    @engine.task(retry=Retry(attempts=3, first=0))
    async def parent(ctx: Context) -> None:
        ctx.enqueue(child.call(ctx.attempt))
        if ctx.attempt < 3:
            raise ValueError("not yet")

    async with engine.worker():
        await (await parent.enqueue()).result(PATIENCE_SECONDS)
        assert [task.arguments for task in await engine.tasks(kind="child")] == [{"attempt": 3}]


async def test_a_result_that_cannot_be_stored_takes_the_children_with_it(engine: Engine) -> None:
    @engine.task
    async def child() -> None: ...

    @engine.task
    async def parent(ctx: Context) -> object:
        ctx.enqueue(child.call())
        return "x" * 2_000_000

    async with engine.worker():
        assert (await ended(await parent.enqueue())).state is State.FAILED
        assert len(await all_tasks(engine)) == 1


async def test_threads_and_processes_have_children_too(engine: Engine) -> None:
    add = on(engine, process_bodies.add)
    in_process = on(engine, process_bodies.with_children)

    @engine.task
    def in_thread(ctx: Context) -> None:
        ctx.enqueue(add.call(1, 1))

    async with engine:
        async with engine.worker(drain=True):
            await in_thread.enqueue()
            await in_process.enqueue(10)
        assert sorted(task.result for task in await engine.tasks(kind="add")) == [2, 11, 12]


async def test_a_child_whose_key_is_taken_is_the_live_task(engine: Engine) -> None:
    @engine.task
    async def child() -> None: ...

    @engine.task
    async def parent(ctx: Context) -> None:
        ctx.enqueue(child.with_options(key="42").call(), child.with_options(key="43").call())

    async with engine:
        live = await child.with_options(key="42", delay=60).enqueue()
        async with engine.worker():
            await (await parent.enqueue()).result(PATIENCE_SECONDS)
            children = await engine.tasks(kind="child")
            assert len(children) == 2
            assert live.id in [task.id for task in children]


async def test_a_task_may_name_its_own_key_for_its_successor(engine: Engine) -> None:
    ran: list[int] = []

    @engine.task
    async def step(ctx: Context, number: int) -> None:
        ran.append(number)
        if number < 5:
            ctx.enqueue(step.with_options(key="chain").call(number + 1))

    async with engine.worker(drain=True):
        await step.with_options(key="chain").enqueue(1)
    assert ran == [1, 2, 3, 4, 5]


async def test_options_that_children_cannot_have_are_refused_in_the_body(engine: Engine) -> None:
    @engine.task
    async def child() -> None: ...

    @engine.task
    async def parent(ctx: Context, how: str) -> None:
        if how == "conn":
            with closing(sqlite3.connect(":memory:")) as connection:
                ctx.enqueue(child.with_options(conn=connection).call())
        else:
            ctx.enqueue(child.with_options(key="42", on_conflict="raise").call())

    async with engine.worker():
        with_conn = await ended(await parent.enqueue("conn"))
        with_raise = await ended(await parent.enqueue("raise"))
    assert with_conn.error is not None
    assert with_conn.error.message.startswith("conn cannot be given to ctx.enqueue")
    assert with_raise.error is not None
    assert with_raise.error.message == 'children of a task can only use on_conflict="return"'
    assert with_raise.reason is Reason.ERROR


async def test_a_body_may_also_enqueue_on_its_own_and_that_stays_whatever_happens(engine: Engine) -> None:
    @engine.task
    async def child() -> None: ...

    @engine.task
    async def on_loop() -> None:
        await child.enqueue()
        raise ValueError("all the same")

    @engine.task
    def in_thread() -> None:
        child.enqueue_sync()
        raise ValueError("all the same")

    async with engine.worker():
        for parent in (on_loop, in_thread):
            assert (await ended(await parent.enqueue())).state is State.FAILED
        children = await engine.tasks(kind="child")
        await asyncio.gather(*(engine.wait(task.id, timeout=PATIENCE_SECONDS) for task in children))
        assert len(children) == 2


async def test_a_fan_out_of_three_generations_runs_to_its_end(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=5)
    ran: list[int] = []

    @engine.task
    async def branch(ctx: Context, depth: int) -> None:
        ran.append(depth)
        if depth < 3:
            ctx.enqueue(*(branch.call(depth + 1) for _ in range(4)))

    async with engine.worker(drain=True):
        await branch.enqueue(0)
    assert sorted(ran) == sorted([0, *[1] * 4, *[2] * 16, *[3] * 64])
