"""Hooks: called once, after it is stored; whatever they do, they change nothing."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.process_functions import exits, on
from tests.support import PATIENCE_SECONDS, ended, until

from synergon import Engine, Reason, Retry, Server, State, injected
from synergon.model.outcomes import ErrorRecord, FencedOutcome, Succeeded, Verdict

Heard = list[tuple[Any, ...]]


def hooks(heard: Heard, prefix: str = "") -> dict[str, Any]:
    """One of each, as functions."""
    return {
        "on_start": lambda task, server: heard.append((f"{prefix}start", task.attempt, server and server.address)),
        "on_success": lambda task, seconds, result: heard.append((f"{prefix}success", task.arguments, result)),
        "on_failure": lambda task, seconds, error: heard.append((f"{prefix}failure", task.id, error.message)),
        "on_complete": lambda task, seconds: heard.append((f"{prefix}complete", task.kind, seconds >= 0)),
    }


async def test_a_success_calls_the_hooks_of_the_kind_and_of_its_provider(engine: Engine) -> None:
    heard: Heard = []
    pool = engine.provider("pool", servers=["a"], **hooks(heard, "pool "))

    @pool.task(**hooks(heard))  # type: ignore[untyped-decorator]  # its options are a dict
    async def work(number: int, server: Server = injected) -> int:
        return 2 * number

    async with engine.worker():
        await (await work.enqueue(4)).result(PATIENCE_SECONDS)
        await until(lambda: len(heard) == 6)
    assert sorted(heard) == sorted(
        [
            ("pool start", 1, "a"),
            ("start", 1, "a"),
            ("pool success", {"number": 4}, 8),
            ("success", {"number": 4}, 8),
            ("pool complete", "work", True),
            ("complete", "work", True),
        ]
    )


async def test_hooks_are_called_for_the_last_failure_and_not_for_a_retry(engine: Engine) -> None:
    heard: Heard = []

    @engine.task(retry=Retry(attempts=3, first=0.001), **hooks(heard))  # type: ignore[untyped-decorator]  # its options are a dict
    async def work() -> None:
        raise ValueError("no")

    async with engine.worker():
        handle = await work.enqueue()
        await ended(handle)
    assert [what for what in heard if what[0] == "start"] == [("start", number, None) for number in (1, 2, 3)]
    assert [what for what in heard if what[0] == "failure"] == [("failure", handle.id, "no")]
    assert [what for what in heard if what[0] == "complete"] == [("complete", "work", True)]


async def test_the_task_function_does_not_wait_for_on_start(engine: Engine) -> None:
    """A hook that takes its time holds up nobody; not even the hooks for the end."""
    over, heard = asyncio.Event(), []

    async def started(task: Any, server: Server | None) -> None:
        await over.wait()
        heard.append("start")

    @engine.task(on_start=started, on_complete=lambda task, seconds: heard.append("complete"))
    async def work() -> None:
        heard.append("body")

    async with engine.worker():
        await (await work.enqueue()).result(PATIENCE_SECONDS)
        await until(lambda: heard == ["body", "complete"])
        over.set()
        await until(lambda: heard == ["body", "complete", "start"])


async def test_coroutine_functions_and_callable_objects_can_be_hooks(engine: Engine) -> None:
    heard: list[str] = []

    async def note(word: str, task: Any, seconds: float) -> None:
        await asyncio.sleep(0)
        heard.append(word)

    class Notes:
        async def __call__(self, task: Any, seconds: float, result: Any) -> None:
            heard.append(f"object {result}")

    @engine.task(on_complete=functools.partial(note, "partial"), on_success=Notes())
    async def work() -> str:
        return "done"

    async with engine.worker():
        await (await work.enqueue()).result(PATIENCE_SECONDS)
        await until(lambda: len(heard) == 2)
    assert set(heard) == {"partial", "object done"}


async def test_errors_of_hooks_are_logged_and_do_not_affect_the_task(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("hook trouble")

    async def refuse_later(*_: Any) -> None:
        raise RuntimeError("hook trouble")

    @engine.task(on_start=refuse, on_success=refuse_later, on_complete=refuse)
    async def work() -> str:
        return "fine"

    with caplog.at_level(logging.ERROR, logger="synergon"):
        async with engine.worker():
            handle = await work.enqueue()
            assert await handle.result(PATIENCE_SECONDS) == "fine"
        record_count = sum("the hook" in record.getMessage() for record in caplog.records)
    assert record_count == 3


async def test_hanging_hooks_block_neither_tasks_nor_the_stop(
    new_engine: NewEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("callbacks", "hooks"):
        monkeypatch.setattr(f"synergon.node.callbacks.{module}.STOP_SECONDS", 0.05)
    release = threading.Event()
    engine = new_engine(url, concurrency=1)

    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    @engine.task(runs_in="thread", on_start=lambda *_: release.wait(60), on_success=hang)
    def work(number: int) -> int:
        return number

    try:
        async with asyncio.timeout(PATIENCE_SECONDS), engine.worker():
            handles = await work.enqueue_many([(number,) for number in range(5)])
            assert [await handle.result() for handle in handles] == list(range(5))
    finally:
        release.set()


async def test_a_stale_outcome_calls_no_hooks(engine: Engine) -> None:
    """The claim was another's by then: whoever has the task now tells of its end."""
    heard: Heard = []
    begun, gate = asyncio.Event(), asyncio.Event()

    @engine.task(**hooks(heard))  # type: ignore[untyped-decorator]  # its options are a dict
    async def work() -> None:
        begun.set()
        await gate.wait()

    async with engine.worker() as node:
        handle = await work.enqueue()
        await asyncio.wait_for(begun.wait(), PATIENCE_SECONDS)
        claim = node.runner.running[handle.id].claim
        late = FencedOutcome(id=claim.id, claim_no=claim.claim_no, outcome=Succeeded(result=b"null"))
        node.hooks.finished(late, Verdict(claim.id, None))  # what the completer says then
        gate.set()
        await handle.result(PATIENCE_SECONDS)
    assert [what[0] for what in heard] == ["start"]


async def test_a_cancelled_task_calls_on_complete_only(engine: Engine) -> None:
    heard: Heard = []
    begun = asyncio.Event()

    @engine.task(**hooks(heard))  # type: ignore[untyped-decorator]  # its options are a dict
    async def work() -> None:
        begun.set()
        await asyncio.sleep(60)

    async with engine.worker():
        handle = await work.enqueue()
        await begun.wait()
        await handle.cancel()
        assert (await ended(handle)).state is State.CANCELLED
    assert sorted(what[0] for what in heard) == ["complete", "start"]


async def test_a_result_that_does_not_fit_its_annotation_fails_only_its_hook(engine: Engine) -> None:
    heard: list[int] = []
    complete: list[int] = []

    @engine.task(
        on_success=lambda task, *_: heard.append(task.id), on_complete=lambda task, _: complete.append(task.id)
    )
    async def work(number: int) -> int:
        return "no number" if number == 0 else number  # type: ignore[return-value]  # that is the point

    async with engine.worker(concurrency=50):
        handles = await work.enqueue_many([(number,) for number in range(20)])
        for handle in handles[1:]:
            await handle.result(PATIENCE_SECONDS)
        await until(lambda: len(complete) == 20)
    assert sorted(heard) == [handle.id for handle in handles[1:]]


async def test_a_task_whose_third_child_dies_calls_on_failure_once(engine: Engine, tmp_path: Path) -> None:
    heard: list[tuple[int, ErrorRecord]] = []
    complete: list[int] = []
    dies = on(
        engine,
        exits,
        on_failure=lambda task, seconds, error: heard.append((task.id, error)),
        on_complete=lambda task, seconds: complete.append(task.id),
    )
    async with engine.worker():
        handle = await dies.enqueue(str(tmp_path / "started"))
        record = await ended(handle)
        await until(lambda: bool(heard and complete))
    assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.CRASHED, 3)
    ((task_id, error),) = heard
    assert (task_id, complete) == (handle.id, [handle.id])
    assert (error.type, error.message) == ("Crash", record.errors[-1].message)


async def test_a_command_that_is_handed_back_calls_on_failure(engine: Engine) -> None:
    heard: list[ErrorRecord] = []
    begun = asyncio.Event()
    gpu = engine.provider("gpu", servers=["g"], on_failure=lambda task, seconds, error: heard.append(error))

    @gpu.command
    async def load(server: Server) -> None:
        begun.set()
        await asyncio.sleep(60)

    async with engine:
        (handle,) = (await load.enqueue()).values()
        async with engine.worker(grace=0):
            await begun.wait()
        record = await engine.get(handle.id)
    assert (record.state, record.reason) == (State.FAILED, Reason.CRASHED)
    (error,) = heard
    assert "gave the command back" in error.message
    assert (error.message, error.attempt) == (record.errors[-1].message, record.errors[-1].attempt)
