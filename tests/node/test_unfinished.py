"""A stop is bounded: a thread that will not end is reported, and its task stays claimed while the thread runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, ThreadGate, until

from synergon import Engine, Handle, State, UnfinishedTask
from synergon.model.attempts import AttemptOutcome


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergon.node.duties.shutdown.LAST_SECONDS", 0.05)


@pytest.fixture
def gate() -> Iterator[ThreadGate]:
    """Opens in the end, so that no thread outlives its test."""
    gate = ThreadGate()
    yield gate
    gate.open()


def with_stubborn(engine: Engine, gate: ThreadGate) -> Engine:
    @engine.task
    def stubborn() -> str:
        gate.hold()
        return "ended at last"

    return engine


async def enqueue(engine: Engine, kind: str = "stubborn") -> Handle[str]:
    (handle,) = await engine.enqueue([engine.call(kind)])
    return handle


async def is_in(engine: Engine, handle: Handle[str], state: State) -> bool:
    return (await engine.get(handle.id)).state is state


async def all_ended(engine: Engine) -> None:
    await until(lambda: not engine.unfinished)


async def test_a_stop_returns_and_reports_what_goes_on(
    new_engine: NewEngine, url: str, gate: ThreadGate, caplog: pytest.LogCaptureFixture
) -> None:
    engine, observer = with_stubborn(new_engine(url, name="first"), gate), new_engine(url)
    async with observer:
        await engine.connect()
        with caplog.at_level(logging.WARNING, logger="synergon"):
            async with asyncio.timeout(PATIENCE_SECONDS):
                async with engine.worker(grace=0):
                    handle = await enqueue(engine)
                    await gate.until_reached()
                left = await engine.stop()
        (task,) = left
        assert left == engine.unfinished
        assert (task.id, task.kind) == (handle.id, "stubborn")
        assert task.thread is not None
        assert task.thread.startswith("synergon-task")
        assert task.location is not None
        assert "support.py" in task.location or "threading.py" in task.location
        assert f"stops without task functions that will not end: {handle.id} (stubborn) in thread" in caplog.text

        # It stays claimed: the node is there, its lease is live, and nobody may take the task.
        (node,) = [node for node in await observer.nodes() if node.name == "first"]
        assert node.lease_remaining > 0
        assert node.state.is_stopping
        assert await observer._store.reap([], 10) == []
        assert (await observer.get(handle.id)).state is State.RUNNING

        gate.open()
        await all_ended(engine)

        await until(lambda: is_in(observer, handle, State.SUCCEEDED))
        record = await observer.get(handle.id)
        assert record.result == "ended at last"
        assert [attempt.outcome for attempt in record.attempts_made] == [AttemptOutcome.SUCCEEDED]

        async def has_left() -> bool:
            return "first" not in [node.name for node in await observer.nodes()]

        await until(has_left)
    assert engine.unfinished == ()


async def test_another_worker_does_not_run_the_task_meanwhile(
    new_engine: NewEngine, url: str, gate: ThreadGate
) -> None:
    first, second = with_stubborn(new_engine(url, lease=2), gate), with_stubborn(new_engine(url), ThreadGate())
    async with second:
        async with first.worker(grace=0):
            handle = await enqueue(first)
            await gate.until_reached()
        assert [task.id for task in first.unfinished] == [handle.id]
        async with second.worker(grace=0) as node:
            await asyncio.sleep(2.5)  # longer than the lease of the first
            assert node.runner.admitted == 0
            assert await is_in(second, handle, State.RUNNING)
            gate.open()
            await until(lambda: is_in(second, handle, State.SUCCEEDED))
    await all_ended(first)


async def test_the_engine_can_run_another_worker_at_once(new_engine: NewEngine, url: str, gate: ThreadGate) -> None:
    engine = with_stubborn(new_engine(url), gate)

    @engine.task
    async def quick() -> str:
        return "done"

    async with engine:
        async with engine.worker(grace=0):
            stubborn = await enqueue(engine)
            await gate.until_reached()
        assert [task.id for task in engine.unfinished] == [stubborn.id]
        async with engine.worker(grace=0):
            assert await (await quick.enqueue()).result(PATIENCE_SECONDS) == "done"
            assert (await stubborn.status()).state is State.RUNNING
            gate.open()
            assert await stubborn.result(PATIENCE_SECONDS) == "ended at last"
    await all_ended(engine)


async def test_without_a_limit_it_waits(new_engine: NewEngine, memory_url: str, gate: ThreadGate) -> None:
    engine = with_stubborn(new_engine(memory_url), gate)
    async with engine:
        await engine.worker(grace=None).__aenter__()
        await enqueue(engine)
        await gate.until_reached()
        stopping = asyncio.create_task(engine.stop(grace=None))
        await asyncio.sleep(0.2)
        assert not stopping.done()
        gate.open()
        assert await stopping == ()


async def test_a_stop_in_order_leaves_nothing(new_engine: NewEngine, memory_url: str) -> None:
    engine = with_stubborn(new_engine(memory_url), ThreadGate())
    async with engine, engine.worker():
        ...
    assert await engine.stop() == ()


def test_the_lease_lives_as_long_as_the_thread_also_without_an_event_loop(
    new_engine: NewEngine, sqlite_url: str, gate: ThreadGate, caplog: pytest.LogCaptureFixture
) -> None:
    """The program's event loop is closed, and the thread goes on: the task is nobody else's until it ends."""
    engine = with_stubborn(new_engine(sqlite_url, lease=2), gate)
    started: list[int] = []

    async def run() -> None:
        async with engine.worker(grace=0):
            started.append((await enqueue(engine)).id)
            await gate.until_reached()

    asyncio.run(run())
    assert [task.id for task in engine.unfinished] == started

    async def look() -> tuple[State, list[int]]:
        async with new_engine(sqlite_url) as observer:
            await asyncio.sleep(2.5)  # longer than the lease
            reaped = [entry.id for entry in await observer._store.reap([], 10)]
            return (await observer.get(started[0])).state, reaped

    assert asyncio.run(look()) == (State.RUNNING, [])
    gate.open()

    async def take_back() -> list[AttemptOutcome | None]:
        async with new_engine(sqlite_url) as observer:

            async def is_free() -> bool:
                await observer._store.reap([], 10)
                return (await observer.get(started[0])).state is State.READY

            await until(is_free)
            return [attempt.outcome for attempt in (await observer.get(started[0])).attempts_made]

    assert asyncio.run(take_back()) == [AttemptOutcome.NODE_DIED]
    assert engine.unfinished == ()
    assert "is closed; its lease expires" in caplog.text


def test_a_report_says_what_it_is_about() -> None:
    task = UnfinishedTask(id=7, kind="k", thread="synergon-task_0", location="app.py:3 in f")
    assert str(task) == "7 (k) in thread synergon-task_0 at app.py:3 in f"
    assert str(UnfinishedTask(id=7, kind="k")) == "7 (k)"
