"""The stream of all that ends, on whatever node: it loses nothing, tells nothing twice, and resumes from a cursor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any, cast

import pytest
from tests.conftest import NewEngine
from tests.node.recorded_events import names, take
from tests.support import PATIENCE_SECONDS, ended, until, until_state

from synergon import (
    Engine,
    Event,
    EventsLost,
    NotConnected,
    OptionError,
    Reason,
    State,
    StoreUnavailable,
)
from synergon.client.connection import Connection
from synergon.client.event_stream import Follower
from synergon.model.lifecycle import FINAL
from synergon.model.tasks import Cutoffs
from synergon.node.duties.sweep import GROWTH
from synergon.stores.postgres.distributed.final_events import ClockFinalEvents


@pytest.fixture
def url(memory_url: str) -> str:
    """What differs between stores is tested with the stores."""
    return memory_url


def double(engine: Engine) -> Any:
    @engine.task(name="double")
    async def work(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return 2 * number

    return work


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_stream_begins_with_the_history_goes_on_with_what_ends_and_resumes_after_a_restart(
    new_engine: NewEngine, store: str, request: pytest.FixtureRequest
) -> None:
    url: str = request.getfixturevalue(f"{store}_url")
    engine = new_engine(url)
    work = double(engine)
    async with engine, engine.worker():
        ids = [(await work.enqueue(number)).id for number in (1, -1)]
        for task_id in ids:
            await engine.wait(task_id)
        events = engine.events()
        first, second = await take(events, 2)
        ids.append((await work.enqueue(3)).id)
        (third,) = await take(events, 1)
        await events.aclose()
    assert [first.task_id, second.task_id, third.task_id] == ids
    assert (first.name, first.state, first.attempt, first.kind) == ("succeeded", State.SUCCEEDED, 1, "double")
    assert (second.name, second.reason) == ("failed", Reason.ERROR)
    again = new_engine(url)
    async with again:
        resumed = await take(again.events(after=first.cursor), 2)
    assert [(event.task_id, event.at) for event in resumed] == [(event.task_id, event.at) for event in (second, third)]


async def test_only_what_was_asked_for(engine: Engine) -> None:
    work = double(engine)

    @engine.task
    async def other() -> None: ...

    async with engine, engine.worker():
        await ended(await work.enqueue(1))  # one by one: outcomes of one batch end at one moment
        await ended(await other.enqueue())
        await ended(await work.enqueue(-1))
        now = engine.events("now")
        waiting = asyncio.ensure_future(anext(now))
        await until(lambda: bool(engine._waiters.followers))
        assert names(await take(engine.events(states="failed"), 1)) == ["failed"]
        assert [event.kind for event in await take(engine.events(kinds="other"), 1)] == ["other"]
        assert names(await take(engine.events(kinds=["double"], states=["failed", "succeeded"]), 2)) == [
            "succeeded",
            "failed",
        ]
        last = await other.enqueue()
        assert (await asyncio.wait_for(waiting, PATIENCE_SECONDS)).task_id == last.id


async def test_a_stream_of_a_rare_kind_may_resume_although_others_were_pruned(engine: Engine) -> None:
    work = double(engine)

    @engine.task
    async def rare() -> None: ...

    async with engine, engine.worker():
        await ended(await rare.enqueue())
        (event,) = await take(engine.events(kinds="rare"), 1)
        await ended(await work.enqueue(1))
        await asyncio.sleep(0.002)
        assert await engine._store.prune(Cutoffs(succeeded=0), 10) == 2
        last = await rare.enqueue()
        assert [found.task_id for found in await take(engine.events(event.cursor, kinds="rare"), 1)] == [last.id]


async def test_a_stream_elsewhere_is_told_without_a_sweep(new_engine: NewEngine, sqlite_url: str) -> None:
    """These engines sweep once a minute; the stream's engine has neither enqueued the tasks nor a node."""
    runner, watcher = new_engine(sqlite_url), new_engine(sqlite_url)
    work = double(runner)
    async with runner, watcher, runner.worker():
        events = watcher.events()
        first = asyncio.ensure_future(anext(events))
        await until(lambda: bool(runner.peers and runner.peers.watchers.followers))
        for number in range(3):
            handle = await work.enqueue(number)
            event = await asyncio.wait_for(first, PATIENCE_SECONDS)
            assert event.task_id == handle.id
            first = asyncio.ensure_future(anext(events))
        first.cancel()


async def test_a_node_that_comes_later_is_asked_to_tell_too(new_engine: NewEngine, sqlite_url: str) -> None:
    runner, watcher = new_engine(sqlite_url), new_engine(sqlite_url)
    work = double(runner)
    async with runner, watcher:
        first = asyncio.ensure_future(anext(watcher.events()))
        await until_reachable(watcher)
        async with runner.worker():
            await until(lambda: bool(runner.peers and runner.peers.watchers.followers))
            handle = await work.enqueue(1)
            assert (await asyncio.wait_for(first, PATIENCE_SECONDS)).task_id == handle.id


async def until_reachable(engine: Engine) -> None:
    await until(lambda: bool(engine._connection._listener and engine._connection._listener._is_registered))


class Healthy:
    """A connection whose peers tell of every end. There are none."""

    is_healthy = True
    is_closed = False

    @property
    def waiters(self) -> Healthy:
        return self

    @property
    def peers(self) -> Healthy:
        return self

    def become_reachable(self) -> None: ...

    def request_all_ends(self) -> None: ...


async def test_an_idle_stream_looks_more_and_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergon.client.event_stream.SHORTEST_SECONDS", 0.03)
    loop, looks = asyncio.get_running_loop(), list[float]()

    class Empty:
        async def read(self, limit: int) -> list[Event]:
            looks.append(loop.time())
            return []

    follower = Follower(cast("Connection", Healthy()), logging.getLogger(), sweep_seconds=None)
    follower._pause = 0.03
    waiting = asyncio.ensure_future(anext(follower.follow(Empty(), None, "")))
    await until(lambda: len(looks) == 3)
    waiting.cancel()
    first, second = (later - earlier for earlier, later in pairwise(looks))
    assert first >= 0.03 * GROWTH - 0.001
    assert second >= 0.03 * GROWTH**2 - 0.001


async def test_a_stream_waits_for_a_store_that_is_away(engine: Engine) -> None:
    work = double(engine)
    async with engine, engine.worker():
        handle = await work.enqueue(1)
        real = await engine._store.endings(None, FINAL)
        outages = [StoreUnavailable("away"), StoreUnavailable("still away")]

        class Troubled:
            async def read(self, limit: int) -> list[Event]:
                if outages:
                    raise outages.pop()
                return await real.read(limit)

        follower = Follower(engine._connection, logging.getLogger(), sweep_seconds=0.01)
        (event,) = await take(follower.follow(Troubled(), None, "mark"), 1)
    assert (event.task_id, outages) == (handle.id, [])


async def test_a_retried_task_that_ends_again_is_told_again(engine: Engine) -> None:
    work = double(engine)
    async with engine, engine.worker():
        handle = await work.enqueue(-1)
        events = engine.events()
        (first,) = await take(events, 1)
        await engine.retry(handle.id)
        (second,) = await take(events, 1)
    assert (first.task_id, first.name) == (second.task_id, second.name) == (handle.id, "failed")
    assert first.cursor != second.cursor


async def test_a_stream_that_was_away_for_too_long_says_so(engine: Engine) -> None:
    work = double(engine)
    async with engine, engine.worker():
        handles = [await work.enqueue(number) for number in range(3)]
        (first,) = await take(engine.events(), 1)
        for handle in handles:
            await ended(handle)
        await asyncio.sleep(0.002)
        await engine._store.prune(Cutoffs(succeeded=0), 10)
        with pytest.raises(EventsLost, match="keep the history for longer"):
            await take(engine.events(first.cursor), 1)


async def test_a_stream_of_an_engine_that_is_closed_ends_with_an_error(engine: Engine) -> None:
    async with engine:
        waiting = asyncio.ensure_future(anext(engine.events()))
        await until(lambda: bool(engine._waiters.followers))
    with pytest.raises(NotConnected, match="closed while a caller followed"):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_nobody_is_left_behind_by_a_stream_that_was_closed(engine: Engine) -> None:
    work = double(engine)
    async with engine, engine.worker():
        events: AsyncGenerator[Event, None] = engine.events()
        await work.enqueue(1)
        await take(events, 1)
        await events.aclose()
        assert not engine._waiters.followers


async def test_a_cursor_of_another_store_is_refused(new_engine: NewEngine, memory_url: str, sqlite_url: str) -> None:
    here, there = new_engine(memory_url), new_engine(sqlite_url)
    work = double(here)
    async with here, there, here.worker():
        await work.enqueue(1)
        (event,) = await take(here.events(), 1)
        with pytest.raises(OptionError, match="of another store"):
            await take(there.events(event.cursor), 1)


@pytest.mark.parametrize(
    "options",
    [{"after": 3}, {"kinds": 3}, {"kinds": [3]}, {"states": "running"}, {"states": []}, {"states": ["failed", "x"]}],
)
def test_what_makes_no_sense_is_refused_at_the_call(engine: Engine, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        engine.events(**options)


async def test_what_is_no_cursor_is_refused(engine: Engine) -> None:
    async with engine:
        for cursor in ("", "yesterday", "12345678", "x.1-1"):
            with pytest.raises(OptionError, match="is no cursor"):
                await take(engine.events(cursor), 1)


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
async def test_a_damaged_cursor_is_refused_on_every_store(
    new_engine: NewEngine, request: pytest.FixtureRequest, store: str
) -> None:
    engine = new_engine(request.getfixturevalue(f"{store}_url"))
    work = double(engine)
    async with engine, engine.worker():
        await work.enqueue(1)
        (event,) = await take(engine.events(), 1)
        assert event.cursor is not None
        mark, _, position = event.cursor.partition(".")
        before = position.rpartition("/")[0] and position.rpartition("/")[0] + "/"
        huge, many = str(2**63), "9" * 5000
        damaged = [f"{before}{huge}-1", f"{before}1-{huge}", f"{before}1-1~{huge}", f"{before}{many}-1"]
        damaged += ["", "-1-1", f"{before}١-١", f"{position}\n", f" {position}"]
        damaged += [f"{huge}:/{huge}:/1-1", f"5:{huge}/9:/1-1", f"5:/9:{many}/1-1", "5:,/9:/1-1"]
        for text in damaged:
            with pytest.raises(OptionError, match="is no cursor"):
                await take(engine.events(f"{mark}.{text}"), 1)


@pytest.mark.parametrize("cursor", ["9" * 19, "9" * 5000, f"1~{2**63}", "١", "-1", "1\n"])
async def test_a_damaged_moment_is_refused(cursor: str) -> None:
    nothing: Any = None  # because nothing is asked
    with pytest.raises(OptionError, match="is no cursor"):
        await ClockFinalEvents.open(nothing, cursor, FINAL, None, 1.0)


async def test_a_task_that_nobody_waits_for_still_reaches_a_stream_of_the_past(engine: Engine) -> None:
    work = double(engine)
    async with engine:
        handle = await work.enqueue(1)
        await handle.cancel()
        await until_state(handle, State.CANCELLED)
        assert names(await take(engine.events(), 1)) == ["cancelled"]
