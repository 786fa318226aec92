"""Events of a node: what it does to tasks, told once, in order, and after it is stored."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator

import pytest
from tests.node.recorded_events import names, take
from tests.stores.actions import Worker
from tests.support import PATIENCE_SECONDS, Gate, ended, until

from synergon import (
    Context,
    Discard,
    Engine,
    Event,
    OptionError,
    Reason,
    Retry,
    Snooze,
    State,
    testing,
)


@pytest.fixture
def url(memory_url: str) -> str:
    """What differs between stores is tested with the stores."""
    return memory_url


async def test_events_of_a_task_come_in_order_and_after_the_commit(engine: Engine) -> None:
    heard: list[Event] = []
    stored: list[State] = []

    @engine.on_event
    async def note(event: Event) -> None:
        heard.append(event)
        if event.state.is_final:
            stored.append((await engine.get(event.task_id)).state)

    @engine.task(retry=Retry(attempts=2, first=0.001))
    async def work(ctx: Context) -> str:
        turn = len(names(heard, ctx.task_id))
        if turn <= 1:
            raise Snooze(0.001)
        if turn <= 3:
            raise ValueError("no")
        return "yes"

    async with engine.worker() as node:
        handle = await work.with_options(queue="mail", tags=["a"]).enqueue()
        await ended(handle)
        await until(lambda: len(heard) == 6)
    assert names(heard) == ["started", "snoozed", "started", "retried", "started", "succeeded"]
    assert [event.attempt for event in heard] == [1, 1, 1, 1, 2, 2]
    assert {(event.task_id, event.kind, event.queue, event.node_id, event.tags, event.cursor) for event in heard} == {
        (handle.id, "work", "mail", node.id, ("a",), None)
    }
    assert [event.state for event in heard[-2:]] == [State.RUNNING, State.SUCCEEDED]
    assert stored == [State.SUCCEEDED]


async def test_every_end_has_an_event_with_its_reason(engine: Engine) -> None:
    heard: list[Event] = []
    engine.on_event(heard.append)
    gate = Gate()

    @engine.task
    async def discard() -> None:
        raise Discard("useless")

    @engine.task
    async def wait() -> None:
        await gate.hold()

    @engine.task
    async def late() -> None: ...

    async with engine:
        expired = await late.with_options(expires_in=0.001, delay=60).enqueue()
        async with engine.worker():
            waiting, discarded = await wait.enqueue(), await discard.enqueue()
            await gate.until_reached()
            await waiting.cancel()
            for handle in (expired, waiting, discarded):
                await ended(handle)
            await until(lambda: len(heard) == 5)
    ends = {event.kind: (event.name, event.state, event.reason) for event in heard if event.name != "started"}
    assert ends == {
        "discard": ("failed", State.FAILED, Reason.DISCARDED),
        "wait": ("cancelled", State.CANCELLED, Reason.CANCELLED),
        "late": ("failed", State.FAILED, Reason.EXPIRED),
    }


async def test_handed_back_tasks_have_events_before_the_node_has_stopped(engine: Engine) -> None:
    heard: list[Event] = []
    engine.on_event(heard.append)
    gate = Gate()

    @engine.task
    async def work() -> None:
        await gate.hold()

    async with engine.worker(grace=0):
        await work.enqueue()
        await gate.until_reached()
    assert [(event.name, event.state) for event in heard] == [
        ("started", State.RUNNING),
        ("handed_back", State.READY),
    ]


async def test_tasks_of_a_dead_node_have_crashed_events(engine: Engine) -> None:
    heard: list[Event] = []
    engine.on_event(heard.append)

    @engine.task(name="work")
    async def work() -> None: ...

    async with engine:
        handle = await work.enqueue()
        dead = await Worker.start(engine._store, "dead")
        await dead.claim("work")
        await engine._store.unregister("dead")
        async with engine.worker():
            await ended(handle)
            await until(lambda: len(heard) == 3)
    assert [(event.name, event.node_id == "dead") for event in heard] == [
        ("crashed", True),
        ("started", False),
        ("succeeded", False),
    ]


async def test_failing_or_hanging_subscribers_delay_nothing(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synergon.node.callbacks.event_feed.MAX_EVENTS", 10)
    for module in ("callbacks", "event_feed"):
        monkeypatch.setattr(f"synergon.node.callbacks.{module}.STOP_SECONDS", 0.05)
    release, told = threading.Event(), []

    @engine.on_event
    def hang(event: Event) -> None:
        release.wait(60)

    @engine.on_event
    async def refuse(event: Event) -> None:
        told.append(event)
        raise RuntimeError("trouble of a subscriber")

    @engine.task
    async def work(number: int) -> int:
        return number

    try:
        with caplog.at_level(logging.WARNING, logger="synergon"):
            async with asyncio.timeout(PATIENCE_SECONDS), engine.worker(concurrency=4):
                for number in range(20):
                    assert await (await work.enqueue(number)).result() == number
                await until(lambda: len(told) == 40)
    finally:
        release.set()
    said = [record.getMessage() for record in caplog.records]
    assert sum("subscriber" in line and "raised, or did not end" in line for line in said) == 40
    assert sum("is too slow" in line for line in said) == 1


async def test_drain_in_a_test_delivers_events(engine: Engine) -> None:
    heard: list[Event] = []
    engine.on_event(heard.append)

    @engine.task
    async def work() -> None: ...

    async with testing.memory(engine) as tester:
        await work.enqueue()
        events = engine.events()
        await tester.drain()
        assert names(await take(events, 1)) == ["succeeded"]
        await events.aclose()
    assert names(heard) == ["started", "succeeded"]


def test_only_functions_can_subscribe(engine: Engine) -> None:
    with pytest.raises(OptionError, match="on_event takes a function"):
        engine.on_event("print")  # type: ignore[type-var]  # wrong on purpose
    for wrong in (Event, lambda: None, _generator, _async_generator, _Generator(), lambda one, two: None):
        with pytest.raises(OptionError, match="on_event takes a function of an event"):
            engine.on_event(wrong)  # type: ignore[type-var]  # wrong on purpose
    assert engine._subscribers == []


def _generator(event: Event) -> Iterator[Event]:
    yield event


async def _async_generator(event: Event) -> AsyncIterator[Event]:
    yield event


class _Generator:
    def __call__(self, event: Event) -> Iterator[Event]:
        yield event


async def test_an_awaitable_returned_by_a_plain_subscriber_is_awaited_in_order(engine: Engine) -> None:
    heard: list[tuple[str, bool]] = []

    async def push(event: Event) -> None:
        await asyncio.sleep(0)
        heard.append((event.name, threading.current_thread() is threading.main_thread()))

    @engine.on_event
    def later(event: Event) -> Awaitable[None]:
        return push(event)

    @engine.task
    async def work() -> None: ...

    async with engine.worker(drain=True):
        await work.enqueue()
    assert heard == [("started", True), ("succeeded", True)]
