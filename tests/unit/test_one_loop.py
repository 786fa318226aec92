"""An engine belongs to one event loop, and says so."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tests.support import PATIENCE_SECONDS, until

from synergon import Engine, NotConnected, State


@pytest.fixture(params=("memory", "sqlite", "postgres"))
def url(request: pytest.FixtureRequest) -> str:
    """The URL of each store in turn."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def test_a_synchronous_program_may_run_a_worker_beside_itself(sqlite_url: str) -> None:
    engine = Engine(sqlite_url, sweep=60)

    @engine.task
    async def double(number: int) -> int:
        return 2 * number

    with engine:
        worker = threading.Thread(target=engine.run_sync, daemon=True)
        worker.start()
        assert double.enqueue_sync(21).result_sync(timeout=PATIENCE_SECONDS) == 42
    worker.join(PATIENCE_SECONDS)
    assert not worker.is_alive()


def test_connecting_on_a_second_loop_is_refused(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)
    with engine, pytest.raises(NotConnected, match="another event loop"):
        asyncio.run(engine.connect())


def test_nothing_is_done_on_a_second_loop_and_nothing_is_spoilt_by_trying(url: str) -> None:
    engine = Engine(url)

    @engine.task
    async def note(number: int) -> None: ...

    with engine:
        handle = note.enqueue_sync(1)
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: note.enqueue(2),
            lambda: note.enqueue_many([(2,)]),
            lambda: engine.enqueue([note.call(2)]),
            handle.status,
            handle.result,
            handle.cancel,
            handle.explain,
            engine.counts,
            lambda: anext(engine.events()),
            engine.stop,
        ]

        async def try_all() -> None:
            for call in calls * 3:
                with pytest.raises(NotConnected, match=r"another event loop.*use the \*_sync twins"):
                    await call()

        asyncio.run(try_all())
        handles = note.enqueue_many_sync([(number,) for number in range(20)])
        assert len({one.status_sync().id for one in handles} | {handle.id}) == 21
        (last,) = engine.enqueue_sync([note.call(3)])
        assert last.id == handle.id + 21, "none was stored meanwhile"


def test_a_loop_that_has_ended_without_a_word_may_be_left_behind(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)
    asyncio.run(engine.connect())
    with pytest.raises(NotConnected, match="another event loop"):
        asyncio.run(engine.counts())
    asyncio.run(engine.stop())


FORKS = """
import asyncio, os, sys
from synergon import Engine, NotConnected

engine = Engine(sys.argv[1])

@engine.task
async def note() -> None: ...

def fork() -> None:
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    for use in (note.enqueue_sync, lambda: engine.enqueue_sync([note.call()]), lambda: asyncio.run(engine.connect())):
        try:
            use()
        except BaseException as error:
            if not isinstance(error, NotConnected) or "before os.fork()" not in str(error):
                os._exit(2)
        else:
            os._exit(1)
    engine.__exit__(None, None, None)  # which has nothing to end
    os._exit(0)

async def fork_from_a_loop() -> None:
    async with engine:
        fork()

with engine:
    note.enqueue_sync()
    fork()
    note.enqueue_sync()
asyncio.run(fork_from_a_loop())
print("done")
"""


def test_a_process_that_was_forked_off_is_told_that_the_engine_is_not_its_own(url: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, url]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout == "done\n", found.stderr


def test_a_call_that_does_not_end_is_refused_when_the_engine_closes(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synergon.client.sync_bridge.END_SECONDS", 0.1)
    engine = Engine(memory_url)
    has_begun, errors = threading.Event(), list[BaseException]()

    async def wait_for_ever() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            engine.sync_bridge.call(wait_for_ever)
        except NotConnected as error:
            errors.append(error)

    with engine:
        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        assert has_begun.wait(10)
    caller.join(10)
    assert not caller.is_alive(), "it waits for ever"
    assert "closed during this call" in str(errors[0])


def test_a_call_whose_loop_has_ended_is_refused(memory_url: str) -> None:
    engine = Engine(memory_url)
    loop = asyncio.new_event_loop()
    loop.close()
    engine._connection.attach(loop)

    async def answer() -> None: ...

    with pytest.raises(NotConnected, match="loop that this engine is connected on has ended before this call"):
        engine.sync_bridge.call(answer)


@pytest.fixture
def connected(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Engine, asyncio.AbstractEventLoop]]:
    """An engine that is connected on a loop which does not run."""
    monkeypatch.setattr("synergon.client.sync_bridge.CHECK_SECONDS", 0.05)
    engine, loop = Engine(memory_url), asyncio.new_event_loop()
    loop.run_until_complete(engine.connect())
    yield engine, loop
    if not loop.is_closed():
        loop.run_until_complete(engine.close())
        loop.close()


ENDED = "loop that this engine is connected on has ended during this call; it may have taken effect"


def test_a_call_to_a_loop_that_has_stopped_ends_and_is_not_made_later(
    connected: tuple[Engine, asyncio.AbstractEventLoop],
) -> None:
    engine, loop = connected

    @engine.task
    async def note() -> None: ...

    with pytest.raises(NotConnected, match=ENDED):
        note.enqueue_sync()
    assert not any(loop.run_until_complete(engine.counts()).values())


@pytest.mark.parametrize("has_begun", [False, True], ids=["before it began", "after it began"])
def test_a_call_ends_with_the_loop_that_closes_without_it(
    connected: tuple[Engine, asyncio.AbstractEventLoop], has_begun: bool
) -> None:
    engine, loop = connected
    tasks: list[asyncio.Task[None] | None] = []

    async def wait_for_ever() -> None:
        tasks.append(asyncio.current_task())
        await asyncio.Event().wait()

    with ThreadPoolExecutor() as threads:
        call = threads.submit(engine.sync_bridge.call, wait_for_ever)
        while has_begun and not tasks:
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        with pytest.raises(NotConnected, match=ENDED):
            call.result(PATIENCE_SECONDS)
    for task in tasks:
        assert task is not None
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # that loop was closed too early on purpose


def test_calls_of_threads_end_with_the_loop_of_asyncio_run(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergon.client.sync_bridge.CHECK_SECONDS", 0.05)
    engine = Engine(memory_url)

    @engine.task
    async def note() -> None: ...

    def call_until_refused() -> str:
        while True:
            try:
                note.enqueue_sync()
            except NotConnected as error:
                return str(error)

    async def has_many() -> bool:
        return (await engine.counts())[State.READY] >= 20

    async def leave_them_behind() -> None:
        await engine.connect()
        calls.extend(threads.submit(call_until_refused) for _ in range(6))
        await until(has_many)

    calls: list[Future[str]] = []
    with ThreadPoolExecutor() as threads:
        asyncio.run(leave_them_behind())
        for call in calls:
            assert "loop that this engine is connected on has ended" in call.result(PATIENCE_SECONDS)
