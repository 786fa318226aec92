"""More time for attempts that run: asked for by the function itself, or by another process."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions
from tests.node.every_store import every_url  # noqa: F401
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, ended, until

from synergon import Context, Engine, IllegalMove, OptionError, Reason, Retry, State, TaskNotFound

OFTEN = Retry(attempts=1000, first=0)
"""A machine that stands still lets an attempt ask too late; then another one asks."""


async def test_a_coroutine_gives_itself_more_time(engine: Engine) -> None:
    @engine.task(timeout=0.05, retry=OFTEN)
    async def long_one(ctx: Context) -> str:
        ctx.extend_timeout("1m")
        await asyncio.sleep(0.3)
        return "in time"

    async with engine.worker():
        assert await (await long_one.enqueue()).result(PATIENCE_SECONDS) == "in time"


async def test_a_thread_gives_itself_more_time(engine: Engine) -> None:
    told = threading.Event()

    @engine.task(timeout=0.05, retry=OFTEN)
    def long_one(ctx: Context) -> bool:
        ctx.extend_timeout(60)
        told.wait(0.3)
        return ctx.cancel_requested

    async with engine.worker():
        assert await (await long_one.enqueue()).result(PATIENCE_SECONDS) is False


async def test_a_child_process_gives_itself_more_time(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url)
    long_one = on(engine, process_functions.ask_for_more_time, timeout=0.3, retry=OFTEN)
    async with engine.worker():
        assert await (await long_one.enqueue(1.0)).result(PATIENCE_SECONDS) == "in time"


async def test_more_time_ends_too_and_the_error_counts_it(engine: Engine) -> None:
    @engine.task(timeout=0.05)
    async def too_long(ctx: Context) -> None:
        ctx.extend_timeout(0.2)
        await asyncio.sleep(60)

    async with engine.worker():
        record = await ended(await too_long.enqueue())
    assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
    assert record.error is not None
    assert record.error.message == "the function ran longer than its timeout of 0.25 s"


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), "soon", None])
async def test_wrong_amounts_of_time_are_told_at_once(engine: Engine, wrong: object) -> None:
    @engine.task
    async def ask(ctx: Context) -> str:
        with pytest.raises(OptionError, match="extend_timeout"):
            ctx.extend_timeout(wrong)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="extend_timeout"):
            await engine.extend_timeout(ctx.task_id, wrong)  # type: ignore[arg-type]
        return "told"

    async with engine.worker():
        assert await (await ask.enqueue()).result(PATIENCE_SECONDS) == "told"


async def test_another_engine_gives_a_running_task_more_time(new_engine: NewEngine, url: str) -> None:
    gate = Gate()
    engine = new_engine(url)
    other = engine if url.startswith("memory") else new_engine(url)

    @engine.task(timeout=PATIENCE_SECONDS)
    async def hold() -> str:
        await gate.hold()
        return "in time"

    async with engine.worker(), other:
        handle = await hold.enqueue()
        await gate.until_reached()
        await other.extend_timeout(handle.id, "30m")
        await other.extend_timeout(handle.id, "30m")
        assert engine._node is not None
        attempt = engine._node.runner.running[handle.id]
        await until(lambda: attempt.timeout == pytest.approx(3600 + PATIENCE_SECONDS))
        assert attempt.deadline is not None
        assert attempt.deadline - asyncio.get_running_loop().time() > 3500
        gate.open()
        assert await handle.result(PATIENCE_SECONDS) == "in time"


async def test_the_next_attempt_has_its_usual_time(engine: Engine) -> None:
    timeouts: list[float | None] = []

    @engine.task(timeout=60, retry=2)
    async def fail_once(ctx: Context) -> None:
        assert engine._node is not None
        attempt = engine._node.runner.running[ctx.task_id]
        if ctx.attempt == 1:
            await engine.extend_timeout(ctx.task_id, 60)
            await until(lambda: attempt.timeout == 120)
            raise ValueError
        timeouts.append(attempt.timeout)

    async with engine.worker():
        await ended(await fail_once.enqueue())
    assert timeouts == [60]


async def test_only_a_running_task_gets_more_time(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    async with engine:
        handle = await note.enqueue()
        with pytest.raises(IllegalMove, match="is ready and cannot be given more time; only a running task can be"):
            await engine.extend_timeout(handle.id, 1)
        with pytest.raises(TaskNotFound):
            await engine.extend_timeout(4711, 1)


def test_code_without_a_loop_has_its_twins(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)

    @engine.task
    async def note() -> None: ...

    with engine:
        handle = note.enqueue_sync()
        with pytest.raises(IllegalMove):
            engine.extend_timeout_sync(handle.id, 1)
        assert engine.update_meta_sync(handle.id, {"a": 1}) == {"a": 1}
        handle.cancel_sync()
        assert engine.prune_sync(cancelled=0) == 1
