"""Bodies and payloads that misbehave: they fail, with a clear reason, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node import slow_to_import
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, Renewals, ended, until, until_state

from synergon import Context, Engine, Reason, Retry, Snooze, State, TaskFailed
from synergon.model.tasks import NewTask
from synergon.node.capacity.machine import usable_processors

# ---------------------------------------------------------------- payloads


async def test_a_payload_that_does_not_fit_fails_at_once_and_its_neighbours_do_not_suffer(engine: Engine) -> None:
    """The producer had another version of the function, or none."""
    ran: list[int] = []

    @engine.task(retry=5)
    async def send(number: int) -> None:
        ran.append(number)

    payloads = (b'{"number":"many"}', b'{"nmber":1}', b"{}", b'{"number":1,"extra":2}', b"not json", b"\xff", b"[]")
    async with engine:
        await engine._store.insert(
            [NewTask(kind="send", payload=b'{"number":%d}' % number) for number in range(3)]
            + [NewTask(kind="send", payload=payload) for payload in payloads]
            + [NewTask(kind="send", payload=b'{"number":%d}' % number) for number in range(3, 6)]
        )
        async with engine.worker(concurrency=2, drain=True):
            pass
        failed = await engine.tasks(state="failed")
    assert sorted(ran) == list(range(6))
    assert len(failed) == len(payloads)
    for task in failed:
        assert (task.reason, task.attempts) == (Reason.ERROR, 0), "no other node might take it"
        assert task.error is not None
        assert task.error.type == "PayloadError"
        assert task.error.message.startswith("the payload of task 'send' does not fit its signature: ")
    assert "Expected `int`, got `str` - at `$.number`" in failed[len(payloads) - 1].errors[0].message


async def test_options_that_cannot_be_read_fail_their_task_and_no_other(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    bad = (b"not json", b'{"attempts":0}', b'{"runs_in":"orbit"}', b'{"timeout":"long"}')
    async with engine:
        inserted = await engine._store.insert(
            [NewTask(kind="note"), *(NewTask(kind="note", overrides=overrides) for overrides in bad)]
        )
        async with engine.worker():
            records = [await engine.wait(row.id, timeout=PATIENCE_SECONDS) for row in inserted]
    assert records[0].state is State.SUCCEEDED
    for record in records[1:]:
        assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
        assert record.error is not None
        assert "options" in record.error.message


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_result_that_cannot_be_stored_fails_with_a_clear_reason(engine: Engine, where: str) -> None:
    results: dict[str, object] = {"large": "x" * (1024 * 1024), "no json": asyncio.Lock(), "cyclic": []}
    results["cyclic"].append(results["cyclic"])  # type: ignore[attr-defined]  # a list

    def give(which: str) -> object:
        return results[which]

    async def give_async(which: str) -> object:
        return results[which]

    task = engine.task(name="give")(give_async) if where == "loop" else engine.task(name="give")(give)
    async with engine.worker():
        messages = []
        for which in results:
            record = await ended(await task.enqueue(which))
            assert record.state is State.FAILED
            assert record.error is not None
            messages.append(record.error.message)
    assert messages[0] == (
        "the result of task 'give' has 1048578 bytes as JSON, more than the limit of 1048576; "
        "store it elsewhere and pass a reference"
    )
    assert messages[1] == "the result of task 'give' cannot be JSON: a Lock cannot be JSON"
    assert messages[2].startswith("the result of task 'give' cannot be JSON: ")


# ---------------------------------------------------------------- what bodies raise

RAISED: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "BaseException": lambda: BaseException("bare"),
    "StopIteration": lambda: StopIteration("done"),
    "StopAsyncIteration": StopAsyncIteration,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "RecursionError": lambda: RecursionError("too deep"),
    "MemoryError": MemoryError,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError("x")]),
}


@pytest.mark.parametrize("raised", RAISED)
async def test_whatever_a_body_raises_it_has_failed_and_the_node_lives_on(engine: Engine, raised: str) -> None:
    make = RAISED[raised]

    @engine.task
    async def on_loop() -> None:
        raise make()

    @engine.task
    def in_thread() -> None:
        raise make()

    @engine.task
    async def other() -> str:
        return "ran"

    async with engine.worker(concurrency=1) as node:
        for body in (on_loop, in_thread):
            record = await ended(await body.enqueue())
            assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
            assert record.error is not None
            assert record.error.type in (raised, "RuntimeError")
        assert await (await other.enqueue()).result(PATIENCE_SECONDS) == "ran"
        assert not node.runner.running


async def test_a_body_that_recurses_without_end_has_failed(engine: Engine) -> None:
    @engine.task
    async def deep() -> None:
        def dive() -> None:
            dive()

        dive()

    async with engine.worker():
        record = await ended(await deep.enqueue())
    assert record.error is not None
    assert record.error.type == "RecursionError"
    assert len(record.error.traceback) < 50_000


# ---------------------------------------------------------------- processes that die


async def test_a_process_that_dies_is_a_crash_and_not_a_failure(
    new_engine: NewEngine, sqlite_url: str, tmp_path: Path
) -> None:
    engine = new_engine(sqlite_url)
    crash_until = on(engine, process_bodies.crash_until)
    async with engine.worker():
        handle = await crash_until.enqueue(str(tmp_path / "runs"), 2)
        assert await handle.result(PATIENCE_SECONDS) == 3
        record = await handle.status()
    assert (record.attempts, record.crashes) == (1, 2)
    assert [error.type for error in record.errors] == ["Crash", "Crash"]
    assert "SIGKILL" in record.errors[0].message


async def test_the_third_crash_is_the_last(new_engine: NewEngine, memory_url: str, tmp_path: Path) -> None:
    engine = new_engine(memory_url)
    exits = on(engine, process_bodies.exits, retry=10)
    runs = tmp_path / "runs"
    async with engine.worker():
        handle = await exits.enqueue(str(runs))
        with pytest.raises(TaskFailed) as failure:
            await handle.result(PATIENCE_SECONDS)
    record = failure.value.record
    assert (record.reason, record.crashes, record.attempts) == (Reason.CRASHED, 3, 0)
    assert len(runs.read_text().splitlines()) == 3
    assert len(set(runs.read_text().splitlines())) == 3, "each time in a process of its own"


async def test_a_process_that_dies_while_it_imports_charges_nothing(
    new_engine: NewEngine, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = new_engine(sqlite_url)
    late = on(engine, slow_to_import.add_late)
    monkeypatch.setenv(slow_to_import.DIES, "1")  # for the child
    async with engine.worker():
        handle = await late.enqueue(1, 2)
        await until_state(handle, State.SCHEDULED)
        record = await handle.status()
        assert (record.attempts, record.crashes, record.is_suspect, record.errors) == (0, 0, False, ())
        monkeypatch.delenv(slow_to_import.DIES)
        await engine.reschedule(handle.id, delay=0)
        assert await handle.result(PATIENCE_SECONDS) == 3


async def test_no_more_processes_start_at_once_than_there_are_processors(
    new_engine: NewEngine, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = new_engine(sqlite_url, child_processes=3 * usable_processors())
    late = on(engine, slow_to_import.add_late)
    monkeypatch.setenv(slow_to_import.IMPORTS, str(tmp_path / "imports"))
    monkeypatch.setenv(slow_to_import.SECONDS, "0.2")
    async with engine.worker():
        handles = await late.enqueue_many([(number, 1) for number in range(3 * usable_processors())])
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == [
            number + 1 for number in range(3 * usable_processors())
        ]
    signs = (tmp_path / "imports").read_text()
    assert "+" in signs
    assert max(accumulate(1 if sign == "+" else -1 for sign in signs)) <= usable_processors()


async def test_what_a_process_body_asks_for_is_heard(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    snooze_once = on(engine, process_bodies.snooze_once)
    snooze_for_ever = on(engine, process_bodies.snooze_for_ever)
    retry_once = on(engine, process_bodies.retry_once, retry=Retry(attempts=2, first=60))
    async with engine.worker():
        assert await (await snooze_once.enqueue()).result(PATIENCE_SECONDS) == 1
        assert await (await retry_once.enqueue()).result(PATIENCE_SECONDS) == 2
        await until_state(await snooze_for_ever.enqueue(), State.SCHEDULED)


# ---------------------------------------------------------------- the loop


@pytest.mark.usefixtures("quick_heartbeat")
async def test_a_body_that_blocks_the_loop_is_named_and_the_lease_survives_it(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url, sweep=0.05)
    way = Renewals(engine)

    @engine.task
    async def block(ctx: Context) -> int:
        before, ends_at = way.count, time.monotonic() + PATIENCE_SECONDS
        while way.count < before + 10 or "has blocked the event loop" not in caplog.text:
            assert time.monotonic() < ends_at
            time.sleep(0.01)  # noqa: ASYNC251  that is the point
        return ctx.claim_no

    with caplog.at_level(logging.WARNING, logger="synergon"):
        async with engine.worker() as node:
            node_id = node.id
            handle = await block.enqueue()
            assert await handle.result(PATIENCE_SECONDS) == 1
            assert node.id == node_id
            assert (await handle.status()).node_id == node_id
            await until(lambda: "the event loop is running again, after" in caplog.text)
    (line,) = [entry.getMessage() for entry in caplog.records if "has blocked the event loop" in entry.getMessage()]
    assert line.startswith(f"task {handle.id} (block) has blocked the event loop for more than 1 s, at ")
    assert f"{__file__}:" in line
    assert "in block; make it a plain function to run it in a thread" in line


# ---------------------------------------------------------------- what bodies leave behind

colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


async def test_context_variables_of_one_body_are_not_seen_by_the_next(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def on_loop(name: str) -> str:
        before = colour.get()
        colour.set(name)
        return before

    @engine.task
    def in_thread(name: str) -> str:
        before = colour.get()
        colour.set(name)
        return before

    in_process = on(engine, process_bodies.change_colour)
    async with engine.worker(concurrency=1):
        for body in (on_loop, in_thread, in_process):
            seen = [await (await body.enqueue(name)).result(PATIENCE_SECONDS) for name in ("red", "green", "blue")]
            assert seen == ["none"] * 3, body.kind


async def test_context_variables_of_whoever_enqueues_are_not_seen_by_the_body(engine: Engine) -> None:
    @engine.task
    async def look() -> str:
        return colour.get()

    async with engine.worker():
        token = colour.set("the producer's")
        assert await (await look.enqueue()).result(PATIENCE_SECONDS) == "none"
        colour.reset(token)


async def test_tasks_that_a_body_leaves_behind_do_not_hold_its_slot(engine: Engine) -> None:
    gate = Gate()
    left: list[asyncio.Task[None]] = []

    @engine.task
    async def leaves_one() -> str:
        left.append(asyncio.create_task(gate.hold()))
        return "ended"

    async with engine.worker(concurrency=1):
        handles = await leaves_one.enqueue_many([()] * 3)
        for handle in handles:
            assert await handle.result(PATIENCE_SECONDS) == "ended"
        gate.open()
        await asyncio.gather(*left)


async def test_a_snooze_for_no_time_at_all_lets_others_run(engine: Engine) -> None:
    turns = 0

    @engine.task
    async def greedy() -> None:
        nonlocal turns
        turns += 1
        if turns < 1000:
            raise Snooze(0)

    @engine.task(priority=1)
    async def other() -> int:
        return turns

    async with engine.worker(concurrency=1):
        handle = await greedy.enqueue()
        await until(lambda: turns > 3)
        assert await (await other.enqueue()).result(PATIENCE_SECONDS) < 1000
        await handle.cancel()
