"""Fifty schedules on three workers that are killed again and again: every occurrence is one task."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from tests.cluster.support import IS_LONG_RUN, WorkerProcess, until

from synergon import Engine, TaskRecord

SCHEDULES: Final = 50
CODED: Final = 25
"""The others are made at run time."""
NODES: Final = 3
SECONDS: Final = 60 if IS_LONG_RUN else 8
KILLS: Final = 5 if IS_LONG_RUN else 1
"""How often each node is killed and replaced."""
START_SECONDS: Final = 10
"""When the schedules begin: a process may take seconds to start."""
SECOND: Final = timedelta(seconds=1)


@pytest.fixture(params=("sqlite", "postgres"))
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


class Nodes:
    """Worker processes, which are replaced when they are killed."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._started = 0
        self.running: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        """Start one."""
        self._started += 1
        log = self._folder / f"worker-{self._started}.log"
        worker = WorkerProcess("schedule_worker", log, {"sweep": 1, "lease": 4}, self._environment)
        self.running.append(worker)
        return worker

    def kill_oldest(self) -> None:
        """Kill the one that has lived longest, and start another."""
        oldest = self.running.pop(0)
        oldest.clear_up()
        self.start()


@asynccontextmanager
async def nodes_on(url: str, folder: Path, starts_at: datetime, ends_at: datetime) -> AsyncIterator[Nodes]:
    environment = {
        "SYNERGON_URL": url,
        "SCHEDULES_START": starts_at.isoformat(),
        "SCHEDULES_END": ends_at.isoformat(),
        "SCHEDULES_CODED": str(CODED),
    }
    nodes = Nodes(folder, environment)
    try:
        yield nodes
    finally:
        for worker in nodes.running:
            worker.clear_up()
            print(f"\n--- worker {worker.pid}\n{worker.log}")


async def all_records(engine: Engine) -> list[TaskRecord]:
    found: list[TaskRecord] = []
    after: str | None = None
    while True:
        page = await engine.tasks(kind="tick", limit=10_000, after=after)
        found += page.tasks
        if page.next is None:
            return found
        after = page.next


@pytest.mark.timeout(300)
async def test_every_occurrence_is_one_task_while_each_node_is_killed_again_and_again(url: str, tmp_path: Path) -> None:
    engine = Engine(url)
    starts_at = datetime.now(UTC) + START_SECONDS * SECOND
    ends_at = starts_at + (SECONDS - 1) * SECOND
    async with engine, nodes_on(url, tmp_path, starts_at, ends_at) as nodes:
        for _ in range(NODES):
            nodes.start()
        for number in range(CODED, SCHEDULES):
            name = f"made-{number}"
            await engine.schedules.create(
                name,
                engine.call("tick", name=name),
                every="1s",
                starts_at=starts_at,
                ends_at=ends_at,
                overlap="queue",
                missed="all",
            )
        await until("the first worker has declared its schedules", lambda: _are_there(engine))
        until_start = (starts_at - datetime.now(UTC)).total_seconds()
        assert until_start > 0, "they are made before they begin"
        await asyncio.sleep(until_start)
        pause = SECONDS / (NODES * KILLS + 1)
        for _ in range(NODES * KILLS):
            await asyncio.sleep(pause)  # the schedules fire meanwhile, which is what is tested
            nodes.kill_oldest()
        await until("all schedules have ended", lambda: _have_ended(engine))
        await until("all tasks have ended", lambda: _is_idle(engine))
        records, schedules = await all_records(engine), await engine.schedules.list()
    occurrences = Counter((record.schedule, record.scheduled_for) for record in records)
    expected = {(schedule.name, starts_at + number * SECOND) for schedule in schedules for number in range(SECONDS)}
    assert len(expected) == SCHEDULES * SECONDS
    assert occurrences == Counter(dict.fromkeys(expected, 1))
    assert {(one.times_fired, one.times_missed, one.times_skipped) for one in schedules} == {(SECONDS, 0, 0)}
    assert {record.state for record in records} == {"succeeded"}


async def _are_there(engine: Engine) -> bool:
    return len(await engine.schedules.list()) == SCHEDULES


async def _have_ended(engine: Engine) -> bool:
    return all(schedule.state == "ended" for schedule in await engine.schedules.list())


async def _is_idle(engine: Engine) -> bool:
    counts = await engine.counts()
    return not any(number for state, number in counts.items() if not state.is_final)
