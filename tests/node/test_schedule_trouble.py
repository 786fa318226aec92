"""Schedules while things go wrong: a store that is away, and clocks that are set."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.test_schedules import Notes
from tests.support import Trouble, is_away, make_troubled, until

from synergon.errors import StoreUnavailable
from synergon.model.record import from_datetime
from synergon.model.schedules import Missed, NewSchedule, Overlap
from synergon.model.tasks import NewTask
from synergon.stores.memory import MemoryStore

SECOND = 1_000_000
HOUR = 3600 * SECOND
START = from_datetime(datetime(2026, 1, 15, 12, tzinfo=UTC))


async def answer_is_lost(call: Callable[[], Awaitable[Any]]) -> Any:
    """Trouble: it is done, and the caller does not hear of it."""
    await call()
    raise StoreUnavailable("the connection is lost")


@pytest.mark.parametrize("trouble", [is_away, answer_is_lost], ids=lambda trouble: trouble.__name__)
async def test_through_an_outage_every_occurrence_runs_once_where_all_are_to_run(
    new_engine: NewEngine, url: str, trouble: Trouble
) -> None:
    engine = new_engine(url)
    notes = Notes(engine)
    stores = make_troubled(engine)
    engine.every("100ms", overlap="queue", missed="all")(notes.task)
    async with engine.worker():
        await notes.until(2)
        store = stores[-1]
        before = store.calls["fire"]
        store.cause("fire", trouble)
        await until(lambda: store.calls["fire"] >= before + 3)
        store.end("fire")
        assert engine._node is not None
        engine._node.scheduler.wake_all()  # what was created without an answer, a sweep would find
        await notes.until(len(notes.moments) + 10)
        record = await engine.schedules.get("note")
    moments = sorted(moment for moment in notes.moments if moment is not None)
    assert {after - before for before, after in itertools.pairwise(moments)} == {timedelta(milliseconds=100)}
    assert (record.times_missed, record.times_skipped) == (0, 0)


class SetClock:
    """A clock of a host that is set by hand."""

    def __init__(self) -> None:
        self.at = START

    def wall(self) -> int:
        return self.at

    def monotonic(self) -> float:
        return self.at / SECOND

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing sleeps here")

    def chance(self) -> float:
        return 0.5


async def fired(store: MemoryStore) -> int:
    """How many tasks all due schedules create."""
    number = 0
    while True:
        found = await store.fire((), 100)
        number += len(found.tasks)
        if found.next_in != 0:
            return number


@pytest.mark.parametrize("cron", [None, "0,10,20,30,40,50 * * * *"])
async def test_a_clock_that_is_set_back_and_forth_fires_nothing_twice(cron: str | None) -> None:
    clock = SetClock()
    store = MemoryStore(clock=clock)
    await store.open()
    timing: dict[str, Any] = {"every": HOUR // 6} if cron is None else {"cron": cron}
    task = NewTask(kind="work")
    kept: tuple[Missed, ...] = ("one", "skip", "all")
    for missed in kept:
        schedule = NewSchedule(name=missed, task=task, overlap="queue", missed=missed, **timing)
        assert await store.create_schedule(schedule)

    clock.at += HOUR // 6
    assert await fired(store) == 3
    clock.at -= HOUR  # back by an hour: nothing is due until it is where it was
    assert await fired(store) == 0
    clock.at += HOUR
    assert await fired(store) == 0
    clock.at += 24 * HOUR  # forth by a day: 144 occurrences, of which the last is on time
    assert await fired(store) == 2 + 1 + 144
    clock.at -= 24 * HOUR
    assert await fired(store) == 0
    clock.at += 24 * HOUR + HOUR // 6
    assert await fired(store) == 3
    counted = {one.name: (one.times_fired, one.times_missed) for one in await store.schedules()}
    assert counted == {"one": (4, 142), "skip": (3, 143), "all": (146, 0)}
    await store.close()


async def test_a_store_that_was_away_for_two_minutes_misses_as_promised() -> None:
    clock = SetClock()
    store = MemoryStore(clock=clock)
    await store.open()
    kept: tuple[tuple[Missed, Overlap], ...] = (("one", "skip"), ("skip", "queue"), ("all", "queue"))
    for missed, overlap in kept:
        schedule = NewSchedule(
            name=missed, task=NewTask(kind="work"), every=10 * SECOND, missed=missed, overlap=overlap
        )
        assert await store.create_schedule(schedule)
    clock.at += 120 * SECOND
    assert await fired(store) == 1 + 1 + 12
    counted = {one.name: (one.times_fired, one.times_missed) for one in await store.schedules()}
    assert counted == {"one": (1, 11), "skip": (1, 11), "all": (12, 0)}
    await store.close()
