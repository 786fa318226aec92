"""Users' functions that are no bodies: whichever it is, and whatever it does, the node and its process end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, until

from synergon import Engine, testing
from synergon.node.callbacks.callbacks import TimeLimit
from synergon.node.node import Node


class Stubborn:
    """Functions that do not end before they are let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.dropped_task = threading.Event()

    async def deaf(self, *_: Any) -> list[Any]:
        """A coroutine that will not be cancelled."""
        self.begun.set()
        while not self.dropped_task.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                continue
        return []

    def stuck(self, *_: Any) -> list[Any]:
        """A plain function that does not return."""
        self.begun.set()
        self.dropped_task.wait(PATIENCE_SECONDS)
        return []

    def deaf_later(self, *_: Any) -> Any:
        """A plain function that returns such a coroutine."""
        return self.deaf()


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubborn]:
    for module in ("callbacks", "hooks", "event_feed", "idle_hooks"):
        monkeypatch.setattr(f"synergon.node.callbacks.{module}.STOP_SECONDS", 0.05)
    functions = Stubborn()
    yield functions
    functions.dropped_task.set()


def a_hook(engine: Engine, function: Callable[..., Any]) -> str:
    @engine.task(on_complete=function)
    async def work() -> None: ...

    return "the hook on_complete of work"


def a_subscriber(engine: Engine, function: Callable[..., Any]) -> str:
    @engine.task
    async def work() -> None: ...

    engine.on_event(function)
    return "the subscriber"


def an_acceptor(engine: Engine, function: Callable[..., Any]) -> str:
    @engine.task
    async def work() -> None: ...

    work.can_accept(function)
    return "can_accept of work"


def an_idle_hook(engine: Engine, function: Callable[..., Any]) -> str:
    @engine.task(queue="elsewhere")
    async def work() -> None: ...

    engine.when_idle(function)
    return "the idle hook"


Place = Callable[[Engine, Callable[..., Any]], str]
EVERYWHERE = pytest.mark.parametrize("place", [a_hook, a_subscriber, an_acceptor, an_idle_hook])


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def stopped_with(engine: Engine, stubborn: Stubborn) -> Node:
    """A node that was stopped while the function was under way."""
    async with asyncio.timeout(PATIENCE_SECONDS), engine.worker() as node:
        await engine.enqueue([engine.call("work")])
        await until(stubborn.begun.is_set)
    return node


@EVERYWHERE
@pytest.mark.parametrize("form", ["deaf", "stuck", "deaf_later"])
async def test_a_callback_that_never_ends_is_logged_once_and_abandoned(
    new_engine: NewEngine,
    memory_url: str,
    stubborn: Stubborn,
    caplog: pytest.LogCaptureFixture,
    place: Place,
    form: str,
) -> None:
    engine = new_engine(memory_url)
    known_as = place(engine, getattr(stubborn, form))
    node = await stopped_with(engine, stubborn)
    (said,) = warnings_of(caplog)
    assert said.startswith(known_as)
    assert f"Stubborn.{form}" in said
    assert said.endswith("did not end within 0.05 s; the node stops without it")
    assert node.must_exit is (form != "stuck"), (
        "a loop waits for its coroutines when it is closed, not for such threads"
    )


@EVERYWHERE
async def test_a_callback_that_ends_when_cancelled_is_not_logged(
    new_engine: NewEngine, memory_url: str, stubborn: Stubborn, caplog: pytest.LogCaptureFixture, place: Place
) -> None:
    engine, was_cancelled = new_engine(memory_url), False

    async def obedient(*_: Any) -> None:
        nonlocal was_cancelled
        stubborn.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # it may clean up
            was_cancelled = True

    place(engine, obedient)
    node = await stopped_with(engine, stubborn)
    assert was_cancelled
    assert not warnings_of(caplog)
    assert not node.must_exit


@EVERYWHERE
@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit])
async def test_exit_exceptions_of_callbacks_do_not_end_the_loop(
    new_engine: NewEngine, memory_url: str, caplog: pytest.LogCaptureFixture, place: Place, raised: type[BaseException]
) -> None:
    """A cancel that nobody asked for must not end the line of a subscriber, or the duty that asks a kind."""
    engine, calls = new_engine(memory_url, sweep=0.02), 0

    async def raises(*_: Any) -> None:
        nonlocal calls
        calls += 1
        raise raised

    place(engine, raises)
    async with asyncio.timeout(PATIENCE_SECONDS), engine.worker():
        await engine.enqueue([engine.call("work")])
        await until(lambda: calls >= 1)
        await engine.enqueue([engine.call("work")])
        if place is not an_idle_hook:  # which has its pause first
            await until(lambda: calls >= 2)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) >= min(calls, 2)
    assert all(record.exc_text and f"it raised {raised.__name__}()" in record.exc_text for record in errors)


@pytest.mark.parametrize("place", [a_hook, a_subscriber])
async def test_a_callback_that_ignores_its_timeout_is_logged_before_the_stop(
    new_engine: NewEngine,
    memory_url: str,
    stubborn: Stubborn,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    place: Place,
) -> None:
    monkeypatch.setattr("synergon.node.callbacks.hooks.CALL_SECONDS", 0.05)
    monkeypatch.setattr("synergon.node.callbacks.event_feed.CALL_SECONDS", 0.05)
    engine = new_engine(memory_url)
    known_as = place(engine, stubborn.deaf)
    async with asyncio.timeout(PATIENCE_SECONDS), engine.worker():
        await engine.enqueue([engine.call("work")])
        await until(lambda: "ignores its timeout of 0.05 s and goes on" in caplog.text)
        assert known_as in caplog.text
        stubborn.dropped_task.set()


@pytest.mark.parametrize("place", [a_hook, a_subscriber])
async def test_a_callback_that_exceeds_its_timeout_is_cancelled_and_called_for_the_next_event(
    new_engine: NewEngine,
    memory_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    place: Place,
) -> None:
    monkeypatch.setattr("synergon.node.callbacks.hooks.CALL_SECONDS", 0.05)
    monkeypatch.setattr("synergon.node.callbacks.event_feed.CALL_SECONDS", 0.05)
    engine, calls = new_engine(memory_url), 0

    async def slow_at_first(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()

    place(engine, slow_at_first)
    async with asyncio.timeout(PATIENCE_SECONDS), engine.worker():
        await engine.enqueue([engine.call("work")] * 2)
        await until(lambda: "did not end within 0.05 s" in caplog.text)
        await until(lambda: calls >= 2)
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert error.exc_text
    assert "slow_at_first" in error.exc_text, "it tells where it was"


async def test_a_time_limit_does_not_swallow_a_cancel_from_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.LoggerAdapter(logging.getLogger("synergon"), {})

    async def limited(seconds: float) -> None:
        with TimeLimit("it", seconds, logger):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await limited(0.001)
    task = asyncio.create_task(limited(3600))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]  # a test is a task
    assert not caplog.records


async def test_drain_in_a_test_ends_despite_hanging_callbacks(
    new_engine: NewEngine, memory_url: str, stubborn: Stubborn, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(memory_url)
    a_hook(engine, stubborn.deaf)
    async with asyncio.timeout(PATIENCE_SECONDS), testing.memory(engine) as tester:
        await engine.enqueue([engine.call("work")])
        await tester.drain()
    assert "Stubborn.deaf) did not end" in caplog.text
