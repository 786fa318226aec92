"""The wall clock steps: nothing runs twice, no lease ends early, and delays are kept."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest
from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import Cluster, cluster_fixture, until  # noqa: F401

from synergon import State

HOUR = 3600
WATCH_SECONDS = 1.0
"""Several sweeps, and a beat of a lease."""


class StepClock:
    """A wall clock of a process's own, which steps when it is told to. (Its other clocks go on as they should.)"""

    def __init__(self, library: Path, offset: Path) -> None:
        self._offset = offset
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.step_to(0)

    def step_to(self, seconds: int) -> None:
        """From now on it is so far from the truth."""
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}s\n")
        fresh.replace(self._offset)


@pytest.fixture
def step_clock(tmp_path: Path) -> StepClock:
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        pytest.skip("no clock that can be set: install the package libfaketime")
    return StepClock(libraries[0], tmp_path / "offset")


def set_clock_of_the_store_ahead(cluster: Cluster, seconds: int) -> None:
    """As a process leaves it that wrote while its wall clock was wrong."""
    database = sqlite3.connect(cluster.database, timeout=10)
    with database:
        database.execute("UPDATE synergon_sequence SET clock = ?", ((time.time_ns() // 1000) + seconds * 1_000_000,))
    database.close()


async def test_a_wall_clock_that_steps_an_hour_either_way_fires_nothing_twice_and_ends_no_lease(
    cluster: Cluster, step_clock: StepClock
) -> None:
    steady = await cluster.start(lease=4, concurrency=1)
    (held_steadily,) = await cluster.enqueue(bodies.hold.call("steady", first=5))
    await cluster.journal.wait_for("begins", "steady")
    shaken = await cluster.start(step_clock.environment, lease=4)
    held_shakily, _, _, far = await cluster.enqueue(
        bodies.hold.call("shaky", first=4),
        bodies.hold.with_options(delay=1).call("in-a-second", first=0),
        bodies.hold.with_options(delay=HOUR // 2).call("in-half-an-hour", first=0),
        bodies.hold.with_options(delay=2 * HOUR).call("in-two-hours", first=0),
    )
    await cluster.journal.wait_for("begins", "shaky", "in-a-second")

    step_clock.step_to(HOUR)
    await cluster.journal.wait_for("begins", "in-half-an-hour")
    await asyncio.sleep(WATCH_SECONDS)
    step_clock.step_to(-HOUR)
    await asyncio.sleep(WATCH_SECONDS)
    step_clock.step_to(0)

    for record in await cluster.ends_of([held_steadily, held_shakily]):
        assert (record.state, record.claim_no, record.crashes) == (State.SUCCEEDED, 1, 0), record
    assert sorted(cluster.journal.labels("begins")) == ["in-a-second", "in-half-an-hour", "shaky", "steady"]
    assert (await far.status()).state is State.SCHEDULED
    assert "lost its lease" not in steady.log + shaken.log


async def test_work_goes_on_while_the_wall_clock_is_an_hour_behind_what_was_written(cluster: Cluster) -> None:
    await cluster.start(lease=4)
    (held,) = await cluster.enqueue(bodies.hold.call("held", first=2.3))
    await cluster.journal.wait_for("begins", "held")
    set_clock_of_the_store_ahead(cluster, HOUR)
    (now,) = await cluster.enqueue(bodies.hold.call("now", first=0))
    assert await now.result(timeout=30) == "now"
    record = await cluster.end_of(held)
    assert (record.state, record.claim_no, record.crashes) == (State.SUCCEEDED, 1, 0)
    assert record.finished_at is not None
    assert record.started_at is not None
    assert record.finished_at > record.started_at


async def test_a_delay_is_kept_while_the_wall_clock_is_an_hour_behind_what_was_written(cluster: Cluster) -> None:
    await cluster.start()
    set_clock_of_the_store_ahead(cluster, HOUR)
    (delayed,) = await cluster.enqueue(bodies.hold.with_options(delay=1).call("delayed", first=0))
    assert await delayed.result(timeout=30) == "delayed"


async def test_a_clock_that_is_set_forth_and_back_fires_no_occurrence_of_a_schedule_twice(
    cluster: Cluster, step_clock: StepClock
) -> None:
    await cluster.start(step_clock.environment, lease=4)
    schedules, call = cluster.engine.schedules, bodies.hold.call("tick", first=0)
    await schedules.create("ticks", call, every="1s", overlap="queue")

    async def has_fired(times: int) -> bool:
        return (await schedules.get("ticks")).times_fired >= times

    async def has_missed_an_hour() -> bool:
        return (await schedules.get("ticks")).times_missed >= HOUR - 10

    await until("it fires", lambda: has_fired(2))
    step_clock.step_to(HOUR)
    await until("the hour is missed", has_missed_an_hour)
    step_clock.step_to(-HOUR)
    await asyncio.sleep(WATCH_SECONDS)
    step_clock.step_to(0)
    await asyncio.sleep(WATCH_SECONDS)
    await schedules.pause("ticks")
    record = await schedules.get("ticks")
    tasks = (await cluster.engine.tasks(kind=bodies.hold.kind, limit=1000)).tasks
    moments = [task.scheduled_for for task in tasks]
    assert len(moments) == len(set(moments)) == record.times_fired
    assert record.every is not None
    assert record.next_at is not None
    passed = (record.next_at - record.created_at) // record.every - 1
    assert record.times_fired + record.times_missed + record.times_skipped == passed
