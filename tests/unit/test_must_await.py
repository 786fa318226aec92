"""Calls that store tasks: refused where no event loop runs, and reported where nothing awaits them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from starlette.background import BackgroundTask
from tests.support import PATIENCE_SECONDS

from synergon import ConfigurationError, Engine, PayloadError

Call = Callable[..., Coroutine[Any, Any, Any]]

NAMES = {
    "send.enqueue": "send.enqueue_sync",
    "send.delay": "send.enqueue_sync",
    "send.enqueue_many": "send.enqueue_many_sync",
    "send.with_options(...).enqueue": "send.with_options(...).enqueue_sync",
    "send.with_options(...).enqueue_many": "send.with_options(...).enqueue_many_sync",
    "engine.enqueue": "engine.enqueue_sync",
    "engine.group": "engine.group_sync",
    "load.send": "load.send_sync",
    "load.enqueue": "load.enqueue_sync",
}
"""Each call that stores tasks, and its twin."""


class App:
    """An engine with one of each, and every call that stores tasks."""

    def __init__(self, engine: Engine) -> None:
        pool = engine.provider("gpu", servers={"http://gpu1": 1})

        @engine.task(name="mail.send")
        async def send(to: str, copies: int = 1) -> str:
            return to

        @pool.command
        async def load(model: str) -> str:
            return model

        self.engine, self.send, self.load = engine, send, load
        later = send.with_options(delay=60)
        some = [send.call("a")]
        self.calls: dict[str, tuple[Call, Call]] = {
            "send.enqueue": (send.enqueue, partial(send.enqueue, "a", copies=2)),
            "send.delay": (send.delay, partial(send.delay, "a")),
            "send.enqueue_many": (send.enqueue_many, partial(send.enqueue_many, [("a",)])),
            "send.with_options(...).enqueue": (later.enqueue, partial(later.enqueue, "a")),
            "send.with_options(...).enqueue_many": (later.enqueue_many, partial(later.enqueue_many, [("a",)])),
            "engine.enqueue": (engine.enqueue, partial(engine.enqueue, some)),
            "engine.group": (engine.group, partial(engine.group, "some", some)),
            "load.send": (load.send, partial(load.send, "llama")),
            "load.enqueue": (load.enqueue, partial(load.enqueue, "llama")),
        }


@pytest.fixture
def app(memory_url: str) -> App:
    return App(Engine(memory_url))


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [record.getMessage() for record in caplog.records if "never awaited" in record.getMessage()]


# ---------------------------------------------------------------- without an event loop


@pytest.mark.parametrize("name", NAMES)
def test_a_call_without_an_event_loop_is_refused_and_names_its_twin(app: App, name: str) -> None:
    _, call = app.calls[name]
    with pytest.raises(ConfigurationError) as refused:
        call()  # type: ignore[unused-coroutine]  # the mistake
    assert str(refused.value).startswith(f"{name}(...) was called where no event loop runs")
    assert f"call {NAMES[name]}(...)" in str(refused.value)
    assert "asyncio.run() await it inside an `async def`" in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
def test_what_asyncio_run_is_given_is_made_without_a_loop_and_refused(app: App, name: str) -> None:
    _, call = app.calls[name]
    with pytest.raises(ConfigurationError, match="no event loop runs"):
        asyncio.run(call())


def test_a_synchronous_view_fails_instead_of_losing_the_task(app: App) -> None:
    def view(
        environ: dict[str, str], start_response: Callable[[str, list[tuple[str, str]]], object]
    ) -> Iterable[bytes]:
        app.send.delay(environ["QUERY_STRING"])  # type: ignore[unused-coroutine]  # the mistake
        start_response("202 Accepted", [])
        return [b"accepted"]

    answers: list[str] = []
    with pytest.raises(ConfigurationError, match=r"call send\.enqueue_sync\(\.\.\.\)"):
        view({"QUERY_STRING": "ada"}, lambda status, headers: answers.append(status))
    assert answers == []


async def test_a_thread_beside_a_running_loop_has_none_itself(app: App) -> None:
    async with app.engine:
        with pytest.raises(ConfigurationError, match="no event loop runs"):
            await asyncio.to_thread(lambda: app.send.enqueue("ada"))  # type: ignore[unused-coroutine]  # the mistake
        handle = await asyncio.to_thread(app.send.enqueue_sync, "ada")
        assert (await handle.status()).arguments == {"to": "ada"}


def test_every_twin_stores_tasks(app: App) -> None:
    send, later, load, engine = app.send, app.send.with_options(delay=60), app.load, app.engine
    with engine:
        stored = [
            send.enqueue_sync("a"),
            *send.enqueue_many_sync([("a",)]),
            later.enqueue_sync("a"),
            *later.enqueue_many_sync([("a",)]),
            *engine.enqueue_sync([send.call("a")]),
            *engine.group_sync("some", [send.call("a")], then=send.call("b")).handles,
            *load.enqueue_sync("llama", to="each").values(),
        ]
        assert [handle.status_sync().kind for handle in stored] == [*["mail.send"] * 6, "gpu.load"]
        with threading_worker(engine):
            assert load.send_sync("llama") == "llama"


@contextmanager
def threading_worker(engine: Engine) -> Iterator[None]:
    """A worker beside synchronous code."""
    thread = threading.Thread(target=lambda: engine.run_sync(), daemon=True)
    thread.start()
    yield
    engine.sync_bridge.call(lambda: engine._stop_node(0))
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


# ---------------------------------------------------------------- without an await


@pytest.mark.parametrize("name", NAMES)
async def test_a_call_that_nothing_awaits_is_an_error_in_the_log(
    app: App, name: str, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    _, call = app.calls[name]
    async with app.engine:
        call()  # type: ignore[unused-coroutine]  # the mistake
        assert reports(caplog) == [
            f"{name}(...) was never awaited: the task is not stored; write `await {name}(...)`",
        ]
        assert sum((await app.engine.counts()).values()) == 0
    (record,) = (record for record in caplog.records if "never awaited" in record.getMessage())
    assert record.levelno == logging.ERROR
    assert record.name == app.engine.logger.name
    assert [str(warning.message) for warning in recwarn] == []


async def test_the_report_goes_to_the_engines_own_logger_and_names_the_line(
    memory_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(Engine(memory_url, logger=logging.getLogger("shop.tasks")))
    app.send.enqueue("ada")  # type: ignore[unused-coroutine]  # the mistake
    (record,) = (record for record in caplog.records if "never awaited" in record.getMessage())
    assert (record.name, record.funcName) == (
        "shop.tasks",
        "test_the_report_goes_to_the_engines_own_logger_and_names_the_line",
    )


@pytest.mark.parametrize("name", NAMES)
async def test_a_call_that_is_closed_or_cancelled_on_purpose_is_not_reported(
    app: App, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, call = app.calls[name]
    async with app.engine:
        call().close()
        task = asyncio.create_task(call())
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        del task
        assert reports(caplog) == []
        assert sum((await app.engine.counts()).values()) == 0


# ---------------------------------------------------------------- as ever


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_coroutine_function_for_whoever_asks(app: App, name: str) -> None:
    method, call = app.calls[name]
    assert inspect.isroutine(method)
    assert inspect.iscoroutinefunction(method)
    assert inspect.iscoroutinefunction(call)
    if sys.version_info < (3, 14):  # where it is deprecated
        assert asyncio.iscoroutinefunction(method)
    assert inspect.signature(method).parameters
    assert method.__doc__
    assert method.__name__ == name.rpartition(".")[2]


@pytest.mark.parametrize("name", NAMES)
async def test_all_of_asyncio_takes_what_a_call_returns(app: App, name: str, caplog: pytest.LogCaptureFixture) -> None:
    _, call = app.calls[name]

    async def as_context_of_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(call())

    async def in_a_thread() -> None:
        coroutine, loop = call(), asyncio.get_running_loop()
        await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(coroutine, loop).result(PATIENCE_SECONDS))

    async with app.engine, app.engine.worker():
        assert asyncio.iscoroutine(call()) is inspect.isawaitable(call()) is True
        caplog.clear()
        before = await counted(app)
        await call()
        await asyncio.create_task(call())
        await asyncio.gather(call(), call())
        await asyncio.wait_for(call(), PATIENCE_SECONDS)
        await asyncio.shield(call())
        await asyncio.ensure_future(call())
        await as_context_of_a_group()
        await in_a_thread()
        assert await counted(app) == before + 9
    assert reports(caplog) == []


async def counted(app: App) -> int:
    return sum((await app.engine.counts()).values())


async def test_a_task_of_asyncio_shows_which_call_it_runs(app: App) -> None:
    async with app.engine:
        task = asyncio.create_task(app.send.delay("ada"))
        assert "delay" in repr(task)
        await task


async def test_a_call_is_awaited_once_like_any_coroutine(app: App) -> None:
    async with app.engine:
        call = app.send.enqueue("ada")
        await call
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            await call


async def test_arguments_that_do_not_fit_are_told_when_it_is_awaited(app: App) -> None:
    async with app.engine:
        # Wrong on purpose: an argument is missing.
        (error,) = await asyncio.gather(app.send.enqueue(), return_exceptions=True)  # type: ignore[call-arg]
        assert isinstance(error, PayloadError)


async def test_a_call_made_on_one_loop_may_run_on_the_engines_own(app: App) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(app.engine.connect(), loop))
        handle = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(app.send.enqueue("ada"), loop))
        assert handle.created
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(app.engine.stop(), loop))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def test_a_framework_awaits_it_instead_of_giving_it_to_a_thread(app: App) -> None:
    async with app.engine:
        for call in (app.send.enqueue, app.send.delay):
            await BackgroundTask(call, "ada")()
        assert await counted(app) == 2
