"""Short tasks for child processes are claimed ahead. Until they begin they wait in the node, and what happens to the
task before them does not harm them. With real child processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions
from tests.node.every_store import every_url  # noqa: F401
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, ended, until, until_state

from synergon import Engine, Handle, Resources, State, Why
from synergon.model.requirements import PROCESS, UNIT
from synergon.node.claims import short_kinds
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.short_kinds import MOST_AHEAD, SAMPLES, ShortKinds
from synergon.node.processes import child_attempts
from synergon.task import AnyTask


class Held:
    """A node with one child process, which runs a task that ends when the test says so."""

    def __init__(self, engine: Engine, task_type: Any, file: Path) -> None:
        self.engine = engine
        self.task_type = task_type
        self.file = file
        self.handle: Handle[int]

    async def begin(self, **options: Any) -> None:
        """Run so many short tasks that the kind is short, then the task that holds the child process."""
        for handle in await self.task_type.enqueue_many([()] * SAMPLES):
            await handle.result(PATIENCE_SECONDS)
        self.handle = await self.task_type.with_options(**options).enqueue(str(self.file))
        await until(self.file.exists)

    async def claimed_ahead(self, number: int, **options: Any) -> list[Handle[int]]:
        """Tasks that the node has claimed, and that wait for the child process."""
        short = self.task_type.with_options(**options) if options else self.task_type
        handles: list[Handle[int]] = await self.engine.enqueue([short.call() for _ in range(number)])
        for handle in handles:
            await until_state(handle, State.RUNNING)
        assert self.engine._node is not None
        running = self.engine._node.runner.running
        await until(lambda: all(handle.id in running and running[handle.id].waits_for_child for handle in handles))
        return handles

    def release(self) -> None:
        """Let the task end."""
        Path(f"{self.file}.go").touch()

    @property
    def pid(self) -> int:
        """The child process."""
        return int(self.file.read_text().split()[-1])


@pytest.fixture
def every_kind_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine too, and what waits does so until the test has looked."""
    monkeypatch.setattr(short_kinds, "SHORT_SECONDS", 1e6)
    monkeypatch.setattr(short_kinds, "AHEAD_SECONDS", 1e9)
    monkeypatch.setattr(child_attempts, "WAIT_SECONDS", 1000.0)


@asynccontextmanager
async def holding(engine: Engine, tmp_path: Path, **options: Any) -> AsyncIterator[Held]:
    held = Held(engine, on(engine, process_functions.hold), tmp_path / "held")
    async with engine.worker(grace=0):
        await held.begin(**options)
        yield held


@pytest.mark.usefixtures("every_kind_is_short")
async def test_short_tasks_wait_in_the_node_and_run_one_after_the_other(
    new_engine: NewEngine, url: str, tmp_path: Path
) -> None:
    engine = new_engine(url, child_processes=1, sweep=60)
    async with engine, holding(engine, tmp_path) as held:
        handles = await held.claimed_ahead(MOST_AHEAD)
        beyond = await held.task_type.enqueue()
        assert (await beyond.status()).state is State.READY, "no more than the most are claimed ahead"

        async def only_the_first_holds_a_process() -> bool:
            said = await engine.explain(beyond.id)
            (cause,) = [cause for node in said.nodes for cause in node.causes]
            return (cause.why, cause.tasks) == (Why.PROCESSES, (held.handle.id,))

        await until(only_the_first_holds_a_process)  # the others are claimed first, and wait for the process then
        held.release()
        pids = {await handle.result(PATIENCE_SECONDS) for handle in (held.handle, *handles, beyond)}
        assert pids == {held.pid}


@pytest.mark.usefixtures("every_kind_is_short")
async def test_a_task_that_waits_can_be_cancelled_without_harm_to_the_one_that_runs(
    new_engine: NewEngine, url: str, tmp_path: Path
) -> None:
    engine = new_engine(url, child_processes=1)
    async with engine, holding(engine, tmp_path) as held:
        first, second = await held.claimed_ahead(2)
        await first.cancel()
        assert (await ended(first)).state is State.CANCELLED
        held.release()
        assert await held.handle.result(PATIENCE_SECONDS) == held.pid
        assert await second.result(PATIENCE_SECONDS) == held.pid


@pytest.mark.usefixtures("every_kind_is_short")
@pytest.mark.parametrize("how", ["death", "cancel", "timeout"])
async def test_only_the_task_that_has_begun_is_charged_with_the_end_of_its_child(
    new_engine: NewEngine, url: str, tmp_path: Path, how: str
) -> None:
    engine = new_engine(url, child_processes=1)
    async with engine, holding(engine, tmp_path, **({"timeout": 2} if how == "timeout" else {})) as held:
        waiting = await held.claimed_ahead(3)
        child = held.pid
        if how == "death":
            os.kill(child, signal.SIGKILL)
        elif how == "cancel":
            await held.handle.cancel()
        for handle in waiting:
            record = await ended(handle)
            assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0)
            assert await handle.result() != child
        held.release()  # a task whose child died runs once more
        record = await ended(held.handle)
    expected = {"death": (State.SUCCEEDED, 1), "cancel": (State.CANCELLED, 0), "timeout": (State.FAILED, 0)}
    assert (record.state, record.crashes) == expected[how]


@pytest.mark.usefixtures("every_kind_is_short")
async def test_a_node_that_kills_its_children_starts_none_of_those_that_wait(
    new_engine: NewEngine, url: str, tmp_path: Path
) -> None:
    engine = new_engine(url, child_processes=1)
    async with engine, holding(engine, tmp_path) as held:
        waiting = await held.claimed_ahead(3)
        assert engine._node is not None
        await asyncio.to_thread(engine._node.membership._executor.kill_children)  # as if the lease were lost
        held.release()
        for handle in (held.handle, *waiting):
            record = await ended(handle)
            assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0)
            assert record.claim_no == 2, "it was handed back and claimed anew"


@pytest.mark.usefixtures("every_kind_is_short")
async def test_the_timeout_of_a_task_does_not_run_while_it_waits(
    new_engine: NewEngine, memory_url: str, tmp_path: Path
) -> None:
    engine = new_engine(memory_url, child_processes=1)
    async with engine, holding(engine, tmp_path) as held:
        (handle,) = await held.claimed_ahead(1, timeout=2)
        await asyncio.sleep(2.5)
        assert (await handle.status()).state is State.RUNNING
        held.release()
        await handle.result(PATIENCE_SECONDS)


@pytest.mark.usefixtures("every_kind_is_short")
async def test_a_node_that_stops_hands_back_what_waits(new_engine: NewEngine, url: str, tmp_path: Path) -> None:
    engine = new_engine(url, child_processes=1)
    async with engine:
        async with holding(engine, tmp_path) as held:
            waiting = await held.claimed_ahead(3)
        records = [await handle.status() for handle in waiting]
    assert [(record.state, record.attempts) for record in records] == [(State.READY, 0)] * 3


async def test_tasks_that_wait_too_long_are_handed_back_and_no_more_are_claimed_ahead(
    new_engine: NewEngine, url: str, tmp_path: Path, every_kind_is_short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = new_engine(url, child_processes=1, sweep=0.05)
    async with engine, holding(engine, tmp_path) as held:
        monkeypatch.setattr(child_attempts, "WAIT_SECONDS", 0.2)
        handles = await held.engine.enqueue([held.task_type.call() for _ in range(3)])

        async def are_handed_back() -> bool:
            records = [await handle.status() for handle in handles]
            return all((one.state, one.claim_no) == (State.READY, 1) for one in records)

        await until(are_handed_back)
        await asyncio.sleep(0.3)
        assert await are_handed_back(), "they are not claimed again while the child process is in use"
        held.release()
        assert {await handle.result(PATIENCE_SECONDS) for handle in handles} == {held.pid}


# ---------------------------------------------------------------- which kinds are short


def measured(engine: Engine, seconds: float, **options: Any) -> tuple[ShortKinds, Ledger, AnyTask]:
    """A kind whose last task functions have run for so long, on a node with two child processes."""
    task_type = on(engine, process_functions.hold, name="kind", **options)
    ledger = Ledger(100, 2)
    found = ShortKinds({"kind": task_type}, ledger)
    for _ in range(SAMPLES):
        assert found.ahead("kind") == 0, "it is not known yet"
        found.note("kind", seconds)
    return found, ledger, task_type


@pytest.mark.parametrize(
    ("seconds", "each"), [(0.0, MOST_AHEAD), (0.001, MOST_AHEAD), (0.0019, 10), (0.0049, 4), (0.005, 0), (1.0, 0)]
)
async def test_the_shorter_a_kind_the_more_is_claimed_ahead(
    new_engine: NewEngine, memory_url: str, seconds: float, each: int
) -> None:
    found, _, _ = measured(new_engine(memory_url), seconds)
    assert found.ahead("kind") == 2 * each


async def test_the_node_claims_again_when_half_of_the_most_wait(new_engine: NewEngine, memory_url: str) -> None:
    found, ledger, task_type = measured(new_engine(memory_url), 0.0049)
    expected = {2: 8, 3: 7, 6: 4, 7: None, 10: None}
    for number in range(1, 11):
        ledger.take("kind", cost=task_type.weight.cost)
        if number in expected:
            assert found.ahead("kind") == expected[number]
        assert ledger.available[PROCESS] == max(2 - number, 0) * UNIT
    assert ledger.waiting_for_processes == 8
    found.forget()
    assert found.ahead("kind") == 0


async def test_nothing_is_claimed_ahead_beside_a_kind_that_is_not_short(new_engine: NewEngine, memory_url: str) -> None:
    found, ledger, task_type = measured(new_engine(memory_url), 0.001)
    ledger.take("long", cost=task_type.weight.cost)
    assert found.ahead("kind") == 0
    ledger.release("long", cost=task_type.weight.cost)
    assert found.ahead("kind") == 2 * MOST_AHEAD


@pytest.mark.parametrize(
    "options",
    [
        {"max_running_global": 1},
        {"on_success": print},
        {"needs": ["gpu"]},
        {"cost": Resources(cpu=1)},
        {"urgent": True},
    ],
)
async def test_kinds_that_need_more_than_a_child_process_are_not_claimed_ahead(
    new_engine: NewEngine, memory_url: str, options: dict[str, Any]
) -> None:
    found, _, _ = measured(new_engine(memory_url), 0.0, **options)
    assert found.ahead("kind") == 0


async def test_a_kind_with_a_final_failure_function_is_not_claimed_ahead(
    new_engine: NewEngine, memory_url: str
) -> None:
    found, _, task_type = measured(new_engine(memory_url), 0.0)

    @task_type.on_final_failure
    def note(_failure: Any) -> None: ...

    assert found.ahead("kind") == 0
