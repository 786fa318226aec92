"""Whoever waits for a task is told of its end, however it ends and wherever: real processes, and a sweep so rare that
only hints explain the speed. Two wait for each task: the engine that has enqueued it, and one that has only its id."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from tests.cluster.peers_support import RARELY, node, url_fixture  # noqa: F401
from tests.support import PATIENCE_SECONDS, SOON, Pace, until, until_state

from synergon import Engine, Handle, Reason, State, TaskCancelled, TaskDeleted, TaskFailed, TaskRecord

ROUNDS: Final = 5
FEW_ROUNDS: Final = 3


@dataclass(slots=True)
class Ends:
    """How the two who waited have learned of the ends, and how long after each."""

    pace: Pace
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"enqueuer": [], "other": []})
    records: list[TaskRecord | TaskDeleted] = field(default_factory=list)

    def check(self, what: str) -> None:
        """Both were told in time, as a rule."""
        for who, seconds in self.seconds.items():
            middle = statistics.median(seconds)
            print(f"{what}: {who} knows after p50 {middle * 1000:.1f} ms, at most {max(seconds) * 1000:.1f} ms")
            assert middle < self.pace.seconds(SOON), (what, who, seconds)


@dataclass(frozen=True, slots=True)
class Place:
    """A worker elsewhere and two engines here that run nothing."""

    url: str
    enqueuer: Engine
    other: Engine

    async def ends(self, rounds: int, kind: str, cause: Callable[[int], Awaitable[Any]], **options: Any) -> Ends:
        """Enqueue, let both wait, and only then cause the end."""
        with Pace() as pace:
            return await self._ends_beside(pace, rounds, kind, cause, options)

    async def _ends_beside(
        self, pace: Pace, rounds: int, kind: str, cause: Callable[[int], Awaitable[Any]], options: Mapping[str, Any]
    ) -> Ends:
        ends = Ends(pace)
        for _ in range(rounds):
            await self.enqueuer.pause("closed")
            (handle,) = await self.enqueuer.enqueue([self.enqueuer.call(kind).with_options(queue="closed", **options)])
            waits = [asyncio.create_task(end_of(each)) for each in (handle, Handle(self.other, handle.id))]
            await asyncio.sleep(0.05)  # that they wait is nothing that could be seen
            caused_at = time.time()
            await cause(handle.id)
            for who, (end, known_at) in zip(ends.seconds, await asyncio.gather(*waits), strict=True):
                ended_at = caused_at if isinstance(end, TaskDeleted) else (end.finished_at or end.run_at).timestamp()
                ends.seconds[who].append(known_at - ended_at)
                ends.records.append(end)
        return ends


async def end_of(handle: Handle[Any]) -> tuple[TaskRecord | TaskDeleted, float]:
    """How the task has ended, and when that was known."""
    try:
        await handle.result(timeout=PATIENCE_SECONDS)
    except TaskDeleted as deleted:
        return deleted, time.time()
    except (TaskFailed, TaskCancelled) as ended:
        return ended.record, time.time()
    known_at = time.time()
    return await handle.status(), known_at


@pytest.fixture(autouse=True)
def _shorter_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes look after each other in a sixth of it."""
    monkeypatch.setenv("SYNERGON_LEASE", "6")


@asynccontextmanager
async def place(url: str, *kinds: str) -> AsyncIterator[Place]:
    """A worker that runs these kinds is there, and everybody knows the others."""
    async with Engine(url, sweep=RARELY) as enqueuer, Engine(url, sweep=RARELY) as other:
        with node(url, "stamp", *kinds):
            (handle,) = await enqueuer.enqueue([enqueuer.call("stamp")])
            for engine in (enqueuer, other):
                await engine.wait(handle.id, timeout=PATIENCE_SECONDS)
            await until(lambda: are_known(enqueuer, 3))
            yield Place(url, enqueuer, other)


async def are_known(engine: Engine, number: int) -> bool:
    """Whether so many engines can be told something."""
    return len(await engine._store.nodes()) == number


async def command(*arguments: str) -> None:
    """Give a command to a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "synergon", *arguments, stdout=subprocess.DEVNULL
    )
    assert await process.wait() == 0


async def test_whoever_waits_is_told_of_the_end_whoever_has_enqueued_the_task(url: str) -> None:
    async with place(url, "fail") as here:

        async def open_for_a_moment(_: int) -> None:
            await here.enqueuer.resume("closed")

        for kind, state in (("stamp", State.SUCCEEDED), ("fail", State.FAILED)):
            ends = await here.ends(ROUNDS, kind, open_for_a_moment)
            assert {end.state for end in ends.records if isinstance(end, TaskRecord)} == {state}
            ends.check(f"{state} on {url.split(':')[0]}")


async def test_whoever_waits_is_told_of_ends_that_no_body_has_brought(url: str) -> None:
    store = url.split(":")[0]
    async with place(url) as here:

        async def nothing(_: int) -> None:
            """Time does it."""

        ends = await here.ends(FEW_ROUNDS, "stamp", nothing, expires_in=0.3)
        assert all(isinstance(end, TaskRecord) and end.reason is Reason.EXPIRED for end in ends.records)
        ends.check(f"expired on {store}")

        async with Engine(url, sweep=RARELY) as operator:
            ends = await here.ends(FEW_ROUNDS, "stamp", operator.cancel)
            assert all(isinstance(end, TaskRecord) and end.state is State.CANCELLED for end in ends.records)
            ends.check(f"cancelled on {store}")

            ends = await here.ends(FEW_ROUNDS, "stamp", operator.delete)
            assert all(isinstance(end, TaskDeleted) for end in ends.records)
            ends.check(f"deleted on {store}")


async def test_whoever_waits_is_told_that_a_task_has_lost_its_last_worker(tmp_path: Path) -> None:
    async with place(f"sqlite:///{tmp_path}/tasks.db") as here:
        with node(here.url, "hold") as doomed:
            (handle,) = await here.enqueuer.enqueue([here.enqueuer.call("hold")])
            await until_state(handle, State.RUNNING)
            with sqlite3.connect(tmp_path / "tasks.db") as database:  # as if nine of its workers had died
                database.execute("UPDATE synergon_task SET owner_deaths = 9 WHERE id = ?", (handle.id,))
            database.close()
            waits = [asyncio.create_task(engine.wait(handle.id)) for engine in (here.enqueuer, here.other)]
            await asyncio.sleep(0.05)
            doomed.send_signal(signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_SECONDS):
                for record in await asyncio.gather(*waits):
                    assert record.reason is Reason.CRASHED


async def test_the_command_line_tells_everybody_what_it_has_done(tmp_path: Path) -> None:
    async with place(f"sqlite:///{tmp_path}/tasks.db", "hold") as here:
        held, stamped = await here.enqueuer.enqueue([here.enqueuer.call("hold"), here.enqueuer.call("stamp")])
        first = await stamped.result(timeout=PATIENCE_SECONDS)
        await until_state(held, State.RUNNING)
        await here.enqueuer.pause("closed")
        (idle,) = await here.enqueuer.enqueue([here.enqueuer.call("stamp").with_options(queue="closed")])
        waits = [asyncio.create_task(engine.wait(idle.id)) for engine in (here.enqueuer, here.other)]
        await asyncio.gather(
            command("tasks", "cancel", str(idle.id), "--url", here.url),
            command("tasks", "cancel", str(held.id), "--url", here.url),
            command("tasks", "retry", str(stamped.id), "--url", here.url),
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert {record.state for record in await asyncio.gather(*waits)} == {State.CANCELLED}
        await until_state(held, State.CANCELLED)
        assert (await until_state(stamped, State.SUCCEEDED)).result > first
