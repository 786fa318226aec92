"""Workers of an older release beside newer ones: what the older cannot read is left to the newer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.every_store import every_url  # noqa: F401  a fixture
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, ended, until

from synergon import Candidate, Engine, ErrorRecord, Event, Reason, State
from synergon.model.requirements import parse_requirements

TASKS = 20


@pytest.fixture
def older(new_engine: NewEngine, url: str) -> Engine:
    return new_engine(url, name="older", sweep=0.05)


@pytest.fixture
def newer(new_engine: NewEngine, url: str) -> Engine:
    return new_engine(url, name="newer", sweep=0.05)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def register(older: Engine, newer: Engine, **options: Any) -> list[str]:
    """One kind; the newer function has an argument more. Who ran, and what."""
    ran: list[str] = []

    async def greet(name: str) -> str:
        ran.append(name)
        return f"hello {name}"

    async def greet_loudly(name: str, *, loud: bool = False) -> str:
        ran.append(name)
        return f"HELLO {name}" if loud else f"hello {name}"

    older.task(name="greet", **options)(greet)
    newer.task(name="greet", **options)(greet_loudly)
    return ran


async def test_what_an_older_worker_cannot_read_is_run_by_a_newer_one(
    older: Engine, newer: Engine, stack: AsyncExitStack
) -> None:
    """The older worker alone has free slots at first, so it claims everything once."""
    ran = register(older, newer, retry=1)
    await stack.enter_async_context(older.worker(concurrency=TASKS))
    await stack.enter_async_context(newer.worker(concurrency=1))
    greet = newer.kinds["greet"]
    handles = [await greet.enqueue(f"{number}", loud=True) for number in range(TASKS)]
    results = await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles))
    assert results == [f"HELLO {number}" for number in range(TASKS)]
    assert sorted(ran, key=int) == [f"{number}" for number in range(TASKS)], "each ran once"
    for handle in handles:
        record = await handle.status()
        assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0)
        refusals = [error for error in record.errors if error.type == "PayloadError"]
        assert len(refusals) == len(record.errors) == record.claim_no - 1 <= 1


async def test_an_older_worker_claims_a_task_that_it_has_refused_no_more(
    older: Engine, newer: Engine, stack: AsyncExitStack
) -> None:
    """It goes on with tasks that fit, behind the one that it has refused."""
    register(older, newer)
    await stack.enter_async_context(older.worker())
    await stack.enter_async_context(newer.worker())
    await newer.cordon(newer._node.id)  # type: ignore[union-attr]  # a worker has a node
    refused = await newer.kinds["greet"].with_options(priority=1).enqueue("Ada", loud=True)

    async def is_refused() -> bool:
        return (await refused.status()).requirements != ""

    await until(is_refused)
    for number in range(TASKS):
        await (await newer.kinds["greet"].enqueue(f"{number}")).result(PATIENCE_SECONDS)
    record = await refused.status()
    assert (record.state, record.claim_no, record.attempts) == (State.READY, 1, 0)
    assert parse_requirements(record.requirements).refused_by == (older._node.id,)  # type: ignore[union-attr]
    await newer.uncordon(newer._node.id)  # type: ignore[union-attr]
    assert await refused.result(PATIENCE_SECONDS) == "HELLO Ada"


async def test_a_task_that_no_live_worker_can_read_has_failed_and_hooks_and_events_say_so(
    older: Engine, newer: Engine, stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[int] = []
    failed: list[tuple[dict[str, Any], ErrorRecord]] = []
    events: list[Event] = []
    for engine in (older, newer):
        engine.task(
            name="greet",
            retry=5,
            on_start=lambda task, server: started.append(task.id),
            on_failure=lambda task, seconds, error: failed.append((task.arguments, error)),
        )(_greet)

        @engine.on_event
        def note(event: Event) -> None:
            events.append(event)

        await stack.enter_async_context(engine.worker())
    producer = await stack.enter_async_context(Engine(newer.settings.url))
    (handle,) = await producer.enqueue([producer.call("greet", name="Ada", loud=True)])
    record = await ended(handle)
    assert (record.state, record.reason, record.attempts, record.claim_no) == (State.FAILED, Reason.ERROR, 0, 2)
    nodes = {engine._node.id for engine in (older, newer)}  # type: ignore[union-attr]
    assert {error.node_id for error in record.errors} == nodes
    assert all("unknown field `loud`" in error.message for error in record.errors)
    await until(lambda: any(event.name == "failed" for event in events))
    assert [event.name for event in events if event.name != "started"] == ["handed_back", "failed"]
    assert [event.reason for event in events if event.name == "failed"] == [Reason.ERROR]
    assert "fit no live node of its kind" in caplog.text
    await until(lambda: bool(failed))
    assert [arguments for arguments, _ in failed] == [{"name": "Ada", "loud": True}]
    assert failed[0][1].type == "PayloadError"
    assert started == []


async def _greet(name: str) -> str:
    return name


async def test_a_worker_that_asks_before_it_claims_refuses_once(
    older: Engine, newer: Engine, stack: AsyncExitStack
) -> None:
    """It has nothing to ask about arguments that it cannot read, and does not look at the task again and again."""
    register(older, newer)

    @older.kinds["greet"].can_accept(holds_for=0.01)
    def accept(candidates: list[Candidate]) -> list[Candidate]:
        return candidates

    await stack.enter_async_context(older.worker())
    await stack.enter_async_context(newer.worker())
    await newer.cordon(newer._node.id)  # type: ignore[union-attr]
    refused = await newer.kinds["greet"].enqueue("Ada", loud=True)

    async def is_refused() -> bool:
        return (await refused.status()).requirements != ""

    await until(is_refused)
    assert await (await newer.kinds["greet"].enqueue("Bob")).result(PATIENCE_SECONDS) == "hello Bob"
    assert (await refused.status()).claim_no == 1
    await newer.uncordon(newer._node.id)  # type: ignore[union-attr]
    assert await refused.result(PATIENCE_SECONDS) == "HELLO Ada"


async def test_child_processes_refuse_too(older: Engine, newer: Engine, stack: AsyncExitStack) -> None:
    on(older, process_bodies.fail, name="sum")
    on(newer, process_bodies.add, name="sum", runs_in="thread")
    await stack.enter_async_context(older.worker(concurrency=4))
    await stack.enter_async_context(newer.worker(concurrency=1))
    handles = [await newer.kinds["sum"].enqueue(1, number) for number in range(4)]
    assert await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles)) == [1, 2, 3, 4]


async def test_a_key_that_cannot_be_computed_here_is_left_to_others(
    older: Engine, newer: Engine, stack: AsyncExitStack
) -> None:
    """A producer without the function does not know the key queue of its task, and neither does the older node."""
    register(older, newer, limit_by="{name}", limit=1)
    await stack.enter_async_context(older.worker())
    await stack.enter_async_context(newer.worker())
    producer = await stack.enter_async_context(Engine(newer.settings.url))
    handles = await producer.enqueue([producer.call("greet", name="Ada", loud=True) for _ in range(3)])
    for handle in handles:
        assert (await ended(handle)).result == "HELLO Ada"


async def test_a_drain_ends_although_another_worker_is_left_with_a_task(older: Engine, newer: Engine) -> None:
    register(older, newer)
    async with newer.worker():
        await newer.cordon(newer._node.id)  # type: ignore[union-attr]
        handle = await newer.kinds["greet"].enqueue("Ada", loud=True)
        async with asyncio.timeout(PATIENCE_SECONDS), older.worker(drain=True):
            pass
        assert (await handle.status()).state is State.READY
        await newer.uncordon(newer._node.id)  # type: ignore[union-attr]
        assert await handle.result(PATIENCE_SECONDS) == "HELLO Ada"
