"""For code without an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, all_tasks

from synergon import Engine, ResultTimeout, State, SynergonError, TaskCancelled


def test_a_script_without_a_loop_enqueues_and_waits(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)

    @engine.task
    async def double(number: int) -> int:
        return 2 * number

    with engine:
        handle = double.enqueue_sync(4)
        many = double.enqueue_many_sync([(1,), {"number": 2}])
        (by_call,) = engine.enqueue_sync([double.call(3)])
        assert handle.status_sync().state is State.READY
        with pytest.raises(ResultTimeout):
            handle.result_sync(timeout=0.01)
    engine.run_sync(drain=True)
    with engine:
        assert handle.result_sync(timeout=PATIENCE_SECONDS) == 8
        assert [one.result_sync(PATIENCE_SECONDS) for one in (*many, by_call)] == [2, 4, 6]
        late = double.with_options(delay=60).enqueue_sync(1)
        assert late.cancel_sync() is True
        with pytest.raises(TaskCancelled):
            late.result_sync(PATIENCE_SECONDS)


def test_nothing_needs_to_be_opened_before_the_first_call(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)

    @engine.task
    async def note() -> None: ...

    assert note.enqueue_sync().status_sync().state is State.READY
    with engine:
        pass


async def test_they_refuse_to_block_a_running_loop(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    async with engine:
        handle = await note.enqueue()
        for call in (
            note.enqueue_sync,
            lambda: note.enqueue_many_sync([()]),
            lambda: engine.enqueue_sync([note.call()]),
            handle.result_sync,
            handle.status_sync,
            handle.cancel_sync,
        ):
            with pytest.raises(SynergonError, match="would block the running event loop; await the call without _sync"):
                call()
        assert len(await all_tasks(engine)) == 1


async def test_bodies_in_threads_go_through_the_engines_loop(engine: Engine) -> None:
    @engine.task
    async def child(number: int) -> int:
        return 10 * number

    @engine.task
    def parent(number: int) -> int:
        return child.enqueue_sync(number).result_sync(PATIENCE_SECONDS) + 1

    async with engine.worker():
        handles = await parent.enqueue_many([(number,) for number in range(5)])
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == [1, 11, 21, 31, 41]
        assert threading.active_count() < 60


async def test_other_threads_of_the_program_may_use_them_too(engine: Engine) -> None:
    @engine.task
    async def double(number: int) -> int:
        return 2 * number

    def use(number: int) -> int:
        return double.enqueue_sync(number).result_sync(PATIENCE_SECONDS)

    async with engine.worker():
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(8) as pool:
            results = await asyncio.gather(*(loop.run_in_executor(pool, use, number) for number in range(40)))
    assert results == [2 * number for number in range(40)]


def test_many_threads_without_a_loop_share_one_connection(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)

    @engine.task
    async def note(number: int) -> None: ...

    with engine, ThreadPoolExecutor(8) as pool:
        handles = list(pool.map(note.enqueue_sync, range(80)))
    assert len({handle.id for handle in handles}) == 80


def test_a_database_that_cannot_be_opened_is_told_and_the_next_try_may_succeed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("later") / "missing"
    engine = Engine(f"sqlite:///{folder}/app.db")

    @engine.task
    async def note() -> None: ...

    with pytest.raises(SynergonError, match="does not exist"):
        note.enqueue_sync()
    folder.mkdir()
    with engine:
        assert note.enqueue_sync().id == 1


async def test_an_engine_closed_by_its_script_can_be_used_by_a_loop(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url)

    @engine.task
    async def note() -> str:
        return "ran"

    handle = await asyncio.to_thread(_enqueue_in_a_script, engine)
    async with engine.worker():
        record = await engine.wait(handle, timeout=PATIENCE_SECONDS)
    assert record.result == "ran"


def _enqueue_in_a_script(engine: Engine) -> int:
    with engine:
        (handle,) = engine.enqueue_sync([engine.call("note")])
        return handle.id
