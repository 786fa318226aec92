"""Middleware: around every body wherever it runs, and whatever holds for bodies holds for it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, ended, until

from synergon import Context, Engine, OptionError, Reason, Retry, Snooze, State, SynergonError, testing
from synergon.call import call_by_name
from synergon.node.attempts import middleware
from synergon.options.middleware_checks import CallNext

word = contextvars.ContextVar[str]("word", default="none")


@pytest.fixture
def url(memory_url: str) -> str:
    """It is the node's doing, whatever the store is."""
    return memory_url


async def run(engine: Engine, task: Any, *arguments: Any) -> Any:
    async with engine.worker():
        return await ended(await task.enqueue(*arguments))


def noting(heard: list[str], name: str) -> Any:
    async def around(ctx: Context, call_next: CallNext) -> Any:
        heard.append(f"{name} in")
        value = await call_next()
        heard.append(f"{name} out")
        return value

    return around


async def test_the_engines_are_outside_in_order_and_then_the_kinds_own(engine: Engine) -> None:
    heard: list[str] = []
    engine.middleware(noting(heard, "first"))

    @engine.task(middleware=[noting(heard, "option")])
    async def work() -> str:
        heard.append("body")
        return "done"

    work.middleware(noting(heard, "own"))
    engine.middleware(noting(heard, "second"))
    assert (await run(engine, work)).result == "done"
    order = ["first", "second", "option", "own"]
    assert heard == [*(f"{name} in" for name in order), "body", *(f"{name} out" for name in reversed(order))]


@pytest.mark.parametrize("runs_in", ["loop", "thread"])
async def test_it_sees_the_task_and_its_result_and_may_change_that_wherever_the_body_runs(
    engine: Engine, runs_in: Any
) -> None:
    seen: list[Any] = []

    @engine.middleware
    async def around(ctx: Context, call_next: CallNext) -> Any:
        seen.append((ctx.kind, ctx.attempt, threading.current_thread() is threading.main_thread()))
        value = await call_next()
        seen.append(value)
        return value + 1

    body = process_bodies.add_slowly if runs_in == "loop" else process_bodies.add
    task = process_bodies.on(engine, body, runs_in=runs_in)
    assert (await run(engine, task, 20, 21)).result == 42
    assert seen == [(task.kind, 1, True), 41]


async def forgive(ctx: Context, call_next: CallNext) -> Any:
    try:
        return await call_next()
    except Exception as error:  # noqa: BLE001  that is the point
        return None if "no luck" in str(error) else 0


async def refuse(ctx: Context, call_next: CallNext) -> Any:
    await call_next()
    raise ValueError("not good enough")


async def hang(ctx: Context, call_next: CallNext) -> Any:
    await call_next()
    await asyncio.Event().wait()


async def add_one(ctx: Context, call_next: CallNext) -> Any:
    return await call_next() + 1


async def pass_on(ctx: Context, call_next: CallNext) -> Any:
    value = await call_next()
    ctx.progress(1, "all done")
    ctx.enqueue(call_by_name("after", (), {}))
    return value


@pytest.mark.parametrize("runs_in", ["thread", "process"])
async def test_elsewhere_it_may_change_what_comes_of_a_body_and_does_not_by_itself(
    engine: Engine, runs_in: Any
) -> None:
    def on(body: Any, name: str, *around: Any, **options: Any) -> Any:
        return process_bodies.on(engine, body, runs_in=runs_in, name=name, middleware=around, **options)

    engine.task(name="after")(process_bodies.process_id.function)
    unchanged = on(process_bodies.fail, "unchanged", noting([], "outer"))
    forgiven = on(process_bodies.fail, "forgiven", noting([], "outer"), forgive)
    refused = on(process_bodies.add, "refused", refuse)
    changed = on(process_bodies.add, "changed", noting([], "outer"), add_one)
    parent = on(process_bodies.add, "parent", pass_on)
    endless = on(process_bodies.add, "endless", hang, timeout=0.3)
    async with engine.worker():
        handles = [await task.enqueue("no luck") for task in (unchanged, forgiven)]
        handles += [await task.enqueue(1, 2) for task in (refused, changed, parent, endless)]
        failed, saved, spoiled, more, proud, late = [await ended(handle) for handle in handles]
        await until(lambda: _has_ended(engine, "after"))
    assert (failed.state, failed.reason, failed.error and failed.error.type) == ("failed", "error", "ValueError")
    assert (saved.state, saved.result) == (State.SUCCEEDED, None)
    assert (spoiled.state, spoiled.error and spoiled.error.message) == (State.FAILED, "not good enough")
    assert more.result == 4
    assert (proud.result, proud.progress and proud.progress.message) == (3, "all done")
    assert (late.state, late.reason) == (State.FAILED, Reason.TIMEOUT)


async def _has_ended(engine: Engine, kind: str) -> bool:
    return (await engine.counts(kind=kind))[State.SUCCEEDED] == 1


async def test_variables_of_the_context_reach_coroutines_and_threads_and_nobody_after_them(engine: Engine) -> None:
    async def speak(ctx: Context, call_next: CallNext) -> Any:
        word.set("hello")
        return await call_next()

    @engine.task(middleware=[speak])
    async def on_loop() -> str:
        return word.get()

    @engine.task(middleware=[speak])
    def in_thread() -> str:
        return word.get()

    @engine.task
    async def without() -> str:
        return word.get()

    async with engine.worker(concurrency=1):
        results = [await (await task.enqueue()).result(PATIENCE_SECONDS) for task in (on_loop, in_thread, without)]
    assert results == ["hello", "hello", "none"]


async def test_it_may_leave_the_body_out(engine: Engine) -> None:
    @engine.task
    async def work() -> str:
        raise AssertionError("never run")

    @work.middleware
    async def cached(ctx: Context, call_next: CallNext) -> str:
        return "from the cache"

    assert (await run(engine, work)).result == "from the cache"


async def test_what_it_raises_is_the_bodys(engine: Engine) -> None:
    calls = 0

    @engine.task(retry=Retry(attempts=2, first=0.001))
    async def work() -> int:
        return calls

    @work.middleware
    async def around(ctx: Context, call_next: CallNext) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Snooze(0.001)
        if calls == 2:
            raise ConnectionError("away")
        return await call_next()

    record = await run(engine, work)
    assert (record.state, record.result, record.attempts) == (State.SUCCEEDED, 3, 2)
    assert [error.type for error in record.errors] == ["ConnectionError"]


async def test_the_body_is_run_once(engine: Engine) -> None:
    @engine.task
    async def work() -> None: ...

    @work.middleware
    async def twice(ctx: Context, call_next: CallNext) -> Any:
        await call_next()
        return await call_next()

    record = await run(engine, work)
    assert record.error is not None
    assert "call_next was called twice" in record.error.message


@pytest.mark.parametrize(
    ("runs_in", "moment"),
    [("loop", "before"), ("loop", "after"), ("thread", "before"), ("process", "before")],
)
async def test_one_that_never_returns_meets_the_deadline(engine: Engine, runs_in: Any, moment: str) -> None:
    body = process_bodies.add_slowly if runs_in == "loop" else process_bodies.add
    task = process_bodies.on(engine, body, runs_in=runs_in, timeout=0.3)

    @task.middleware
    async def around(ctx: Context, call_next: CallNext) -> Any:
        if moment == "after":
            await call_next()
        await asyncio.Event().wait()

    record = await run(engine, task, 1, 2)
    assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)


async def test_a_thread_keeps_its_slot_whatever_middleware_does_meanwhile(engine: Engine) -> None:
    gate = ThreadGate()
    has_ended: list[bool] = []

    @engine.task(timeout=30)
    def work() -> None:
        gate.hold()
        has_ended.append(True)

    @work.middleware
    async def impatient(ctx: Context, call_next: CallNext) -> Any:
        async with asyncio.timeout(0.01):
            return await call_next()

    async with engine.worker(concurrency=1) as node:
        handle = await work.enqueue()
        await gate.until_reached()
        await asyncio.sleep(0.05)  # its own limit passes
        assert handle.id in node.runner.running
        gate.open()
        record = await ended(handle)
    assert has_ended == [True]
    assert record.error is not None
    assert record.error.type == "TimeoutError"


@pytest.mark.parametrize("has_fallback", [True, False], ids=["returns", "raises"])
async def test_a_thread_that_middleware_waits_for_no_more_keeps_its_slot(engine: Engine, has_fallback: bool) -> None:
    gate, has_given_up = ThreadGate(), asyncio.Event()

    @engine.task
    def work() -> str:
        gate.hold()
        return "late"

    @work.middleware
    async def impatient(ctx: Context, call_next: CallNext) -> Any:
        body = asyncio.ensure_future(call_next())
        await gate.until_reached()
        assert not body.done()
        has_given_up.set()
        if not has_fallback:
            raise ConnectionError("too slow")
        return "instead"

    async with engine.worker(concurrency=1) as node:
        handle = await work.enqueue()
        await asyncio.wait_for(has_given_up.wait(), PATIENCE_SECONDS)
        await asyncio.sleep(0.05)
        assert handle.id in node.runner.running
        assert (await handle.status()).state is State.RUNNING
        gate.open()
        record = await ended(handle)
    if has_fallback:
        assert record.result == "instead"
    else:
        assert record.error is not None
        assert record.error.type == "ConnectionError"


async def test_a_coroutine_that_middleware_waits_for_no_more_is_cancelled_and_waited_for(engine: Engine) -> None:
    gate, told, heard, waits = Gate(), asyncio.Event(), list[str](), list[Any]()

    @engine.task
    async def work() -> None:
        told.set()
        try:
            await asyncio.Event().wait()
        finally:
            await gate.hold()  # it takes its time to clean up
            heard.append("body")

    async def between(ctx: Context, call_next: CallNext) -> Any:
        try:
            return await call_next()
        finally:
            await asyncio.sleep(0)
            heard.append("inner middleware")

    async def outer(ctx: Context, call_next: CallNext) -> Any:
        waits.append(asyncio.ensure_future(call_next()))
        await told.wait()
        return "instead"

    work.middleware(outer)
    work.middleware(between)
    async with engine.worker(concurrency=1) as node:
        handle = await work.enqueue()
        await gate.until_reached()
        await asyncio.sleep(0.05)
        assert handle.id in node.runner.running
        gate.open()
        record = await ended(handle)
    assert (record.result, heard) == ("instead", ["body", "inner middleware"])


async def test_a_child_that_middleware_waits_for_no_more_is_killed(engine: Engine, tmp_path: Path) -> None:
    started, waits = tmp_path / "started", list[Any]()
    task = process_bodies.on(engine, process_bodies.sleep_long, timeout=30, retry=Retry(attempts=1))

    @task.middleware
    async def impatient(ctx: Context, call_next: CallNext) -> Any:
        waits.append(asyncio.ensure_future(call_next()))
        await until(started.exists)
        raise ConnectionError("too slow")

    record = await run(engine, task, str(started))
    assert (record.state, record.attempts) == (State.FAILED, 1)
    assert [error.type for error in record.errors] == ["ConnectionError"]
    assert waits[0].cancelled()


async def test_a_body_does_not_begin_when_its_middleware_has_ended(engine: Engine) -> None:
    begun, later = list[str](), list[Any]()

    @engine.task
    def in_thread() -> None:
        begun.append("thread")

    @engine.middleware
    async def hasty(ctx: Context, call_next: CallNext) -> Any:
        later.append(asyncio.ensure_future(call_next()))
        return "instead"

    assert (await run(engine, in_thread)).result == "instead"
    with pytest.raises(SynergonError, match="when the middleware had ended"):
        await later[0]
    assert begun == []


@pytest.mark.parametrize("why", ["shutdown", "preemption"])
async def test_a_thread_that_ends_well_although_it_was_asked_to_yield_has_its_result(
    new_engine: NewEngine, url: str, why: str
) -> None:
    engine, gate, heard = new_engine(url, concurrency=1), ThreadGate(), list[str]()

    @engine.task(preemptible=True)
    def work() -> str:
        heard.append("body")
        gate.hold()
        return "done"

    @engine.task(urgent=True)
    async def alarm() -> None: ...

    @work.middleware
    async def around(ctx: Context, call_next: CallNext) -> Any:
        value = await call_next()
        await asyncio.sleep(0)
        heard.append("after")
        return value

    async with engine:
        async with engine.worker(grace=0) as node:
            handle = await work.enqueue()
            await gate.until_reached()
            stopping = None
            if why == "preemption":
                await alarm.enqueue()
            else:
                stopping = asyncio.ensure_future(node.stop(0))
            await until(lambda: node.runner.running[handle.id].stop is not None)
            gate.open()
            if stopping is not None:
                await stopping
            else:
                await ended(handle)
        assert (await handle.status()).result == "done"
    assert heard == ["body", "after"]


async def test_what_middleware_does_after_such_a_body_has_little_time(
    new_engine: NewEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "LAST_SECONDS", 0.05)
    engine, gate = new_engine(url), ThreadGate()

    @engine.task(middleware=[hang])
    def work() -> None:
        gate.hold()

    async with engine:
        async with engine.worker(grace=0) as node:
            handle = await work.enqueue()
            await gate.until_reached()
            stopping = asyncio.ensure_future(node.stop(0))
            await until(lambda: node.runner.running[handle.id].stop is not None)
            gate.open()
            await asyncio.wait_for(stopping, PATIENCE_SECONDS)
        record = await handle.status()
        assert (record.state, record.attempts) == (State.READY, 0)


async def test_a_cancel_reaches_it_before_during_and_after_the_body(engine: Engine) -> None:
    gates = [Gate(), Gate(), Gate()]
    cleaned: list[int] = []

    @engine.task
    async def work(place: int) -> None:
        if place == 1:
            await gates[1].hold()

    @work.middleware
    async def around(ctx: Context, call_next: CallNext) -> Any:
        place = ctx.meta["place"]
        try:
            if place == 0:
                await gates[0].hold()
            await call_next()
            if place == 2:
                await gates[2].hold()
        finally:
            cleaned.append(place)

    async with engine.worker():
        for place in range(3):
            handle = await work.with_options(meta={"place": place}).enqueue(place)
            await gates[place].until_reached()
            await handle.cancel()
            assert (await ended(handle)).state is State.CANCELLED
    assert cleaned == [0, 1, 2]


async def test_a_thread_that_ends_after_a_cancel_takes_its_middleware_with_it(engine: Engine) -> None:
    gate = ThreadGate()

    @engine.task
    def work() -> None:
        gate.hold()

    @work.middleware
    async def around(ctx: Context, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except asyncio.CancelledError:
            raise
        finally:
            assert ctx.cancel_requested

    async with engine.worker() as node:
        handle = await work.enqueue()
        await gate.until_reached()
        await handle.cancel()
        await until(lambda: node.runner.running[handle.id].stop is not None)
        gate.open()
        assert (await ended(handle)).state is State.CANCELLED


async def test_a_node_that_stops_hands_back_what_middleware_holds(new_engine: NewEngine, url: str) -> None:
    engine, gate = new_engine(url), Gate()

    @engine.task
    async def work() -> None: ...

    @work.middleware
    async def around(ctx: Context, call_next: CallNext) -> Any:
        await gate.hold()

    async with engine:
        async with engine.worker(grace=0):
            handle = await work.enqueue()
            await gate.until_reached()
        record = await handle.status()
        assert (record.state, record.attempts) == (State.READY, 0)


async def test_a_test_runs_it_too(engine: Engine) -> None:
    heard: list[str] = []

    @engine.task
    def work() -> str:
        return "done"

    work.middleware(noting(heard, "own"))
    async with testing.memory(engine) as tester:
        handle = await work.enqueue()
        await tester.drain()
        assert await handle.result() == "done"
    assert heard == ["own in", "own out"]


def plain(ctx: Any, call_next: Any) -> None: ...


async def too_few(ctx: Any) -> None: ...


@pytest.mark.parametrize("wrong", [plain, too_few, 3, None])
def test_what_cannot_be_middleware_is_refused_where_it_is_given(engine: Engine, wrong: Any) -> None:
    with pytest.raises(OptionError, match="middleware"):
        engine.middleware(wrong)
    with pytest.raises(OptionError, match="middleware"):

        @engine.task(middleware=[wrong])
        async def work() -> None: ...

    with pytest.raises(OptionError, match="must be a list of functions"):

        @engine.task(middleware=wrong)
        async def other() -> None: ...

    assert engine._middlewares == []
