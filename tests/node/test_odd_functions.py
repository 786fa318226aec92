"""Bodies that do odd things: each has its own outcome, and nobody else notices."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node import slow_to_import
from tests.support import PATIENCE_SECONDS, Renewals, ended

from synergon import Context, Engine, KeyConflict, OptionError, Reason, Retry, State, SynergonError, TaskNotFound


async def test_causes_that_go_round_in_a_circle_are_an_error_like_any_other(engine: Engine) -> None:
    @engine.task
    async def circle() -> None:
        first, second = ValueError("first"), ValueError("second")
        try:
            raise first from second
        except ValueError:
            raise second from first

    async with engine.worker():
        record = await ended(await circle.enqueue())
    assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)


async def test_a_cancel_that_a_body_leaves_behind_hits_nobody_else(engine: Engine) -> None:
    @engine.task
    async def leave_a_cancel() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.05, task.cancel)
        return 1

    @engine.task
    async def innocent() -> int:
        await asyncio.sleep(0.1)
        return 2

    async with engine.worker(concurrency=2):
        odd = [await leave_a_cancel.enqueue() for _ in range(3)]
        handles = [await innocent.enqueue() for _ in range(6)]
        assert [await handle.result(PATIENCE_SECONDS) for handle in odd + handles] == [1] * 3 + [2] * 6


async def test_a_body_that_cancels_itself_in_its_transaction_still_ends(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url)

    @engine.task
    async def cancel_myself(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            connection.execute("CREATE TABLE mine (number INTEGER)")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return 1

    async with engine, engine.worker(grace=1):
        assert await (await cancel_myself.enqueue()).result(PATIENCE_SECONDS) == 1
        assert engine._node is not None
        assert engine._node.runner.running == {}


async def test_transactions_one_after_the_other_do_not_cost_the_lease(
    new_engine: NewEngine, sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synergon.node.liveness.lease.HEARTBEATS_PER_LEASE", 60)  # renewed twice a second
    engine = new_engine(sqlite_url)
    way = Renewals(engine)

    @engine.task
    def hold(number: int, ctx: Context) -> int:
        with ctx.transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS mine (number INTEGER)")
            time.sleep(0.2)
        return number

    async with engine, engine.worker(concurrency=10):
        before = way.count
        handles = await hold.enqueue_many([(number,) for number in range(10)])
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == list(range(10))
        assert way.count >= before + 2, "it is renewed in between"
        assert {(await handle.status()).claim_no for handle in handles} == {1}
    assert "has lost its lease" not in caplog.text


async def test_a_result_that_only_claims_to_be_json_fails_its_own_task(engine: Engine) -> None:
    @engine.task
    async def raw() -> msgspec.Raw:
        return msgspec.Raw(b"not json")

    async with engine.worker():
        record = await ended(await raw.enqueue())
        assert len(await engine.tasks()) == 1
    assert record.state is State.FAILED
    assert record.error is not None
    assert "cannot be JSON" in record.error.message


async def test_what_a_wait_function_raises_is_recorded(engine: Engine) -> None:
    def wait(_: int) -> float:
        raise ZeroDivisionError("oops")

    @engine.task(retry=Retry(attempts=2, wait=wait))
    async def fail() -> None:
        raise ValueError("no")

    @engine.task(retry=Retry(attempts=2, wait=lambda _: timedelta(milliseconds=1)))
    async def fail_soon() -> None:
        raise ValueError("no")

    async with engine.worker():
        handle = await fail.enqueue()
        await ended(await fail_soon.enqueue())
        record = await handle.status()
    assert record.state is State.SCHEDULED
    assert record.error is not None
    assert "ZeroDivisionError: oops" in record.error.message


async def test_a_call_may_run_elsewhere_than_its_kind_does(engine: Engine) -> None:
    where = process_bodies.on(engine, process_bodies.process_id)
    async with engine.worker():
        assert await (await where.with_options(runs_in="thread").enqueue()).result(PATIENCE_SECONDS) == os.getpid()
        assert await (await where.enqueue()).result(PATIENCE_SECONDS) != os.getpid()


async def test_the_start_of_a_process_is_not_the_bodys_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = process_bodies.on(engine, slow_to_import.add_late, timeout=1)
    monkeypatch.setenv(slow_to_import.SECONDS, "2")  # for the child, which imports it now
    async with engine.worker():
        assert await (await quick.enqueue(1, 2)).result(PATIENCE_SECONDS) == 3


async def test_a_refused_enqueue_leaves_no_transaction_on_the_callers_connection(
    new_engine: NewEngine, sqlite_url: str, tmp_path: Path
) -> None:
    engine = new_engine(sqlite_url)

    @engine.task
    async def work() -> None: ...

    async with engine:
        await work.with_options(key="a").enqueue()
        connection = sqlite3.connect(tmp_path / "tasks.db")
        with pytest.raises(KeyConflict):
            await work.with_options(key="a", on_conflict="raise", conn=connection).enqueue()
        assert not connection.in_transaction
        connection.close()


async def test_ids_that_no_store_gives_are_refused(engine: Engine) -> None:
    async with engine:
        for operation in (engine.get, engine.cancel, engine.retry, engine.delete):
            with pytest.raises(TaskNotFound):
                await operation(2**63)
            with pytest.raises(OptionError, match="whole number"):
                await operation("1")  # type: ignore[arg-type]  # that is the point
        with pytest.raises(OptionError, match="kind must be text"):
            await engine.tasks(kind=5)  # type: ignore[arg-type]  # that is the point


async def test_a_body_cannot_wait_for_itself_to_end(engine: Engine) -> None:
    @engine.task
    async def stop_everything() -> None:
        await engine.stop(grace=None)

    async with engine.worker():
        record = await ended(await stop_everything.enqueue())
    assert record.error is not None
    assert record.error.type == SynergonError.__name__
    assert "grace" in record.error.message
