"""Errors of tasks in Sentry: which arrive, and with what tags. A transport in the test receives them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport
from tests.conftest import NewEngine
from tests.contrib import traced_functions
from tests.contrib.traced_functions import on
from tests.support import ended, until, until_state

from synergon import (
    Batch,
    BatchErrors,
    Cancel,
    Context,
    Discard,
    Engine,
    OptionError,
    Retry,
    RetryAfter,
    Snooze,
    State,
)
from synergon.contrib import sentry


class Received(Transport):
    """Keeps the events that would be sent."""

    def __init__(self) -> None:
        super().__init__({"dsn": "https://key@sentry.invalid/1"})
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(event)


@pytest.fixture
def received() -> Iterator[Received]:
    transport = Received()
    sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=transport, auto_enabling_integrations=False)
    yield transport
    sentry_sdk.get_client().close()
    sentry_sdk.init()


@pytest.fixture
def engine(new_engine: NewEngine, url: str, received: Received) -> Engine:
    made = new_engine(url, name="kim")
    sentry.instrument(made)
    return made


def errors(event: Any) -> list[tuple[str, str]]:
    """The types and messages of an event."""
    return [(value["type"], value["value"]) for value in event["exception"]["values"]]


async def test_each_failed_attempt_arrives_once_with_its_task(engine: Engine, received: Received) -> None:
    @engine.task(retry=Retry(attempts=2, first=0))
    async def in_loop() -> None:
        raise ConnectionError("away")

    @engine.task(retry=Retry(attempts=1))
    def in_thread() -> None:
        raise ValueError("no")

    async with engine.worker():
        first, second = await in_loop.enqueue(), await in_thread.enqueue()
        await ended(first)
        await ended(second)
    found = {(event["tags"]["kind"], event["tags"]["attempt"]): event for event in received.events}
    assert len(received.events) == 3
    for kind, attempt, handle, error in (
        ("in_loop", "1", first, ("ConnectionError", "away")),
        ("in_loop", "2", first, ("ConnectionError", "away")),
        ("in_thread", "1", second, ("ValueError", "no")),
    ):
        event = found[kind, attempt]
        assert errors(event) == [error]
        tags = {"task_id": str(handle.id), "kind": kind, "attempt": attempt, "queue": "default", "node": "kim"}
        assert event["tags"] == tags
        assert event["exception"]["values"][0]["stacktrace"]["frames"][-1]["function"] == kind


async def test_an_error_in_a_child_process_arrives_with_its_type(
    new_engine: NewEngine, sqlite_url: str, received: Received
) -> None:
    engine = new_engine(sqlite_url)
    sentry.instrument(engine)
    fail = on(engine, traced_functions.fail, runs_in="process", retry=Retry(attempts=2, first=3600))
    async with engine.worker():
        handles = [await fail.enqueue(how) for how in ("snooze", "retry", "no")]
        for handle in handles:
            await until_state(handle, State.SCHEDULED)
    (event,) = received.events
    assert errors(event) == [("ValueError", "no")]
    assert (event["tags"]["task_id"], event["tags"]["attempt"]) == (str(handles[2].id), "1")
    assert "in fail" in event["extra"]["traceback"]


async def test_what_is_no_error_does_not_arrive(engine: Engine, received: Received) -> None:
    raised = {"snooze": Snooze(3600), "retry": RetryAfter(3600), "discard": Discard("no"), "cancel": Cancel("no")}
    started = asyncio.Event()
    runs: list[str] = []

    @engine.task
    async def ask(how: str) -> None:
        runs.append(how)
        raise raised[how]

    @engine.task
    async def unwanted() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("raised by the end of a cancelled task")

    async with engine.worker():
        for how in raised:
            await ask.enqueue(how)
        handle = await unwanted.enqueue()
        await started.wait()
        await handle.cancel()
        await ended(handle)
        await until(lambda: len(runs) == len(raised))
    assert received.events == []


async def test_a_timeout_arrives(engine: Engine, received: Received) -> None:
    @engine.task(timeout=0.05, retry=Retry(attempts=1))
    async def late() -> None:
        await asyncio.sleep(60)

    async with engine.worker():
        await ended(await late.enqueue())
    (event,) = received.events
    assert errors(event) == [("Timeout", "the function ran longer than its timeout")]


async def test_errors_of_a_batch_name_their_items(engine: Engine, received: Received) -> None:
    @engine.task(batch=Batch(size=3, wait=60), retry=Retry(attempts=1))
    async def store(rows: list[int]) -> None:
        raise BatchErrors({1: ValueError("first"), 2: KeyError("second")})

    async with engine.worker():
        handles = [await store.enqueue(number) for number in range(3)]
        for handle in handles:
            await ended(handle)
    assert [event["tags"]["task_id"] for event in received.events] == [str(handle.id) for handle in handles[1:]]


async def test_what_the_function_reports_itself_has_the_tags(engine: Engine, received: Received) -> None:
    @engine.task
    def tell(ctx: Context) -> None:
        sentry_sdk.capture_message("something odd")

    async with engine.worker():
        handle = await tell.enqueue()
        await ended(handle)
    (event,) = received.events
    assert (event["message"], event["tags"]["task_id"]) == ("something odd", str(handle.id))


def test_an_engine_reports_once(engine: Engine) -> None:
    with pytest.raises(OptionError, match="reports to Sentry already"):
        sentry.instrument(engine)
