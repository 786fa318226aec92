"""`@kind.on_final_failure`: what it writes and the end of the task are one commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, ended, until, until_state

from synergon import (
    Cancel,
    ConfigurationError,
    Discard,
    Engine,
    ErrorRecord,
    Handle,
    Reason,
    Retry,
    Snooze,
    State,
    TaskFailed,
)
from synergon.call import call_by_name
from synergon.errors import StoreUnavailable
from synergon.node.attempts import final_failure
from synergon.node.callbacks.hooks import HookTask

TABLE = "CREATE TABLE IF NOT EXISTS given_up (name text)"


class Ledger:
    """The table of a user, on either database, with the two ways to write to it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_file = engine.settings.url.startswith("sqlite")
        self.calls: list[tuple[HookTask, float, ErrorRecord]] = []

    async def prepare(self) -> None:
        """Make the table, and empty it."""
        await self._run(TABLE)
        await self._run("DELETE FROM given_up")

    async def rows(self) -> list[str]:
        """What is committed."""
        return [row[0] for row in await self._run("SELECT name FROM given_up")]

    async def _run(self, sql: str) -> list[Any]:
        transaction = await self.engine._store.begin(10.0)
        try:
            connection = transaction.connection
            if self.is_file:
                found = connection.execute(sql).fetchall()
                connection.commit()
            else:
                found = await connection.fetch(sql)
                await connection.execute("COMMIT")
        finally:
            await transaction.rollback()
        return list(found)

    async def note(self, task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        """An `async` function."""
        self.calls.append((task, seconds, error))
        async with transaction as connection:
            if self.is_file:
                connection.execute("INSERT INTO given_up VALUES (?)", (f"task {task.id}",))
            else:
                await connection.execute("INSERT INTO given_up VALUES ($1)", f"task {task.id}")

    def note_sync(self, task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        """A plain function, which runs in a thread."""
        self.calls.append((task, seconds, error))
        with transaction as connection:
            parameter = "?" if self.is_file else "$1"
            value = f"task {task.id}"
            statement = f"INSERT INTO given_up VALUES ({parameter})"
            connection.execute(statement, (value,) if self.is_file else value)


@pytest.fixture(params=("sqlite", "postgres"))
async def engine(request: pytest.FixtureRequest, new_engine: NewEngine) -> AsyncIterator[Engine]:
    """An engine on each store that has transactions."""
    engine = new_engine(request.getfixturevalue(f"{request.param}_url"))
    async with engine:
        yield engine


@pytest.fixture
async def ledger(engine: Engine) -> Ledger:
    ledger = Ledger(engine)
    await ledger.prepare()
    return ledger


async def failed(handle: Handle[Any]) -> TaskFailed:
    with pytest.raises(TaskFailed) as raised:
        await handle.result(PATIENCE_SECONDS)
    return raised.value


@pytest.mark.parametrize("style", ["async", "plain"])
async def test_its_writes_are_stored_with_the_end(engine: Engine, ledger: Ledger, style: str) -> None:
    @engine.task(retry=Retry(attempts=2, first=0))
    async def charge(customer: str) -> None:
        raise ValueError("no money")

    charge.on_final_failure(ledger.note if style == "async" else ledger.note_sync)
    async with engine.worker():
        handle = await charge.enqueue("ada")
        assert (await failed(handle)).record.reason is Reason.EXHAUSTED
    assert await ledger.rows() == [f"task {handle.id}"], "once, and not after the first attempt"
    ((task, seconds, error),) = ledger.calls
    assert (task.id, task.kind, task.attempt, task.arguments) == (handle.id, "charge", 2, {"customer": "ada"})
    assert (error.type, error.message) == ("ValueError", "no money")
    assert seconds >= 0
    assert [error.message for error in (await handle.status()).errors] == ["no money", "no money"]


@pytest.mark.parametrize("outcome", ["success", "snooze", "cancel", "retry"])
async def test_it_is_not_called_for_other_ends(engine: Engine, ledger: Ledger, outcome: str) -> None:
    @engine.task(retry=2)
    async def charge() -> None:
        match outcome:
            case "snooze":
                raise Snooze(60)
            case "cancel":
                raise Cancel("enough")
            case "retry":
                raise ValueError

    charge.on_final_failure(ledger.note)
    async with engine.worker():
        handle = await charge.enqueue()
        await until_state(handle, State.SUCCEEDED, State.SCHEDULED, State.CANCELLED)
    assert ledger.calls == []


async def test_a_discarded_task_and_one_that_ran_out_of_time_have_failed(engine: Engine, ledger: Ledger) -> None:
    @engine.task(timeout=0.05)
    async def charge(*, is_slow: bool) -> None:
        if is_slow:
            await asyncio.sleep(PATIENCE_SECONDS)
        raise Discard("never mind")

    charge.on_final_failure(ledger.note)
    async with engine.worker():
        handles = [await charge.enqueue(is_slow=is_slow) for is_slow in (True, False)]
        reasons = [(await failed(handle)).record.reason for handle in handles]
    assert reasons == [Reason.TIMEOUT, Reason.DISCARDED]
    assert sorted(await ledger.rows()) == sorted(f"task {handle.id}" for handle in handles)


async def test_it_is_called_after_the_third_death_of_a_child(engine: Engine, ledger: Ledger, tmp_path: Path) -> None:
    exits = on(engine, process_functions.exits)
    exits.on_final_failure(ledger.note)
    async with engine.worker():
        handle = await exits.enqueue(str(tmp_path / "started"))
        record = (await failed(handle)).record
    assert (record.reason, record.crashes) == (Reason.CRASHED, 3)
    assert await ledger.rows() == [f"task {handle.id}"]
    ((_, _, error),) = ledger.calls
    assert error.type == "Crash"


async def test_it_is_called_for_arguments_that_fit_no_node(engine: Engine, ledger: Ledger) -> None:
    @engine.task
    async def charge(customer: int) -> None: ...

    charge.on_final_failure(ledger.note)
    (handle,) = await engine.enqueue([call_by_name("charge", (), {"customer": "no number"})])
    async with engine.worker():
        assert (await failed(handle)).record.reason is Reason.ERROR
    assert await ledger.rows() == [f"task {handle.id}"]


@pytest.mark.parametrize("style", ["async", "plain"])
async def test_if_it_raises_the_task_ends_and_says_so(
    engine: Engine, ledger: Ledger, style: str, caplog: pytest.LogCaptureFixture
) -> None:
    @engine.task
    async def charge() -> None:
        raise ValueError("no money")

    async def clean_up(task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        await ledger.note(task, seconds, error, transaction)
        raise KeyError("no file")

    def clean_up_sync(task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        ledger.note_sync(task, seconds, error, transaction)
        raise KeyError("no file")

    charge.on_final_failure(clean_up if style == "async" else clean_up_sync)
    async with engine.worker():
        handle = await charge.enqueue()
        record = (await failed(handle)).record
    assert await ledger.rows() == [], "nothing of it is stored"
    assert len(ledger.calls) == 1
    assert record.error is not None
    assert record.error.message == "no money (and its on_final_failure raised KeyError: 'no file')"
    assert "Then its on_final_failure raised:" in record.error.traceback
    assert "clean_up" in record.error.traceback
    assert f"on_final_failure of task {handle.id} (charge) raised" in caplog.text


async def test_a_statement_that_fails_is_an_error_of_the_function(engine: Engine, ledger: Ledger) -> None:
    @engine.task
    async def charge() -> None:
        raise ValueError("no money")

    @charge.on_final_failure
    async def clean_up(task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        async with transaction as connection:
            result = connection.execute("INSERT INTO no_table VALUES (1)")
            if not ledger.is_file:
                await result

    async with engine.worker():
        record = (await failed(await charge.enqueue())).record
    assert record.error is not None
    assert "no_table" in record.error.message


async def test_a_function_that_writes_nothing_needs_no_transaction(new_engine: NewEngine, memory_url: str) -> None:
    called: list[int] = []
    engine = new_engine(memory_url)

    @engine.task
    async def charge() -> None:
        raise ValueError("no money")

    @charge.on_final_failure
    def clean_up(task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        called.append(task.id)

    async with engine, engine.worker():
        handle = await charge.enqueue()
        await failed(handle)
    assert called == [handle.id]


async def test_a_store_without_transactions_says_so(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def charge() -> None:
        raise ValueError("no money")

    @charge.on_final_failure
    async def clean_up(task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        async with transaction:
            pass

    async with engine, engine.worker():
        record = (await failed(await charge.enqueue())).record
    assert record.error is not None
    assert "has no transactions" in record.error.message


async def test_a_task_that_is_cancelled_meanwhile_is_cancelled(engine: Engine, ledger: Ledger) -> None:
    gate = Gate()

    @engine.task
    async def charge() -> None:
        raise ValueError("no money")

    @charge.on_final_failure
    async def clean_up(task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        await gate.hold()
        await ledger.note(task, seconds, error, transaction)

    async with engine.worker():
        handle = await charge.enqueue()
        await gate.until_reached()
        await handle.cancel()
        gate.open()
        assert (await ended(handle)).state is State.CANCELLED
    assert len(ledger.calls) == 1
    assert await ledger.rows() == []


async def test_a_stale_claim_stores_nothing(engine: Engine, ledger: Ledger) -> None:
    """The fence: another node has taken the task while the function ran."""
    gate = Gate()
    runs: list[int] = []

    @engine.task
    async def charge() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("no money")

    @charge.on_final_failure
    async def clean_up(task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        await gate.hold()
        await ledger.note(task, seconds, error, transaction)

    async with engine.worker() as node:
        handle = await charge.enqueue()
        await gate.until_reached()
        assert [entry.id for entry in await engine._store.reap([node.id], 10)] == [handle.id]
        gate.open()
        await until(lambda: node.completer.stale == 1)
        assert len(ledger.calls) == 1
    assert await ledger.rows() == []


async def test_while_the_database_is_away_it_is_called_again(
    engine: Engine, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    @engine.task
    async def charge() -> None:
        raise ValueError("no money")

    @charge.on_final_failure
    async def clean_up(task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        await ledger.note(task, seconds, error, transaction)
        tries.append(task.id)
        if len(tries) < 3:
            raise StoreUnavailable("gone for a moment")

    monkeypatch.setattr(final_failure, "pause_after", lambda failures: 0.001)
    async with engine.worker():
        handle = await charge.enqueue()
        await failed(handle)
    assert len(tries) == 3
    assert await ledger.rows() == [f"task {handle.id}"]


async def test_a_function_that_takes_too_long_is_left_behind(
    engine: Engine, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_failure, "CALL_SECONDS", 0.05)

    @engine.task
    async def charge() -> None:
        raise ValueError("no money")

    @charge.on_final_failure
    async def clean_up(task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        await ledger.note(task, seconds, error, transaction)
        await asyncio.sleep(PATIENCE_SECONDS)

    async with engine.worker():
        record = (await failed(await charge.enqueue())).record
    assert record.error is not None
    assert "it did not end within 0.05 s" in record.error.message
    assert await ledger.rows() == []


async def test_its_slot_is_taken_until_it_has_ended(engine: Engine, ledger: Ledger) -> None:
    gate = Gate()

    @engine.task
    async def charge() -> None:
        raise ValueError("no money")

    @charge.on_final_failure
    async def clean_up(task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        await gate.hold()

    async with engine.worker() as node:
        handle = await charge.enqueue()
        await gate.until_reached()
        assert list(node.runner.running) == [handle.id]
        assert (await handle.status()).state is State.RUNNING
        gate.open()
        await failed(handle)


async def test_the_hooks_are_called_after_it(engine: Engine, ledger: Ledger) -> None:
    said: list[str] = []

    @engine.task(on_failure=lambda task, seconds, error: said.append("on_failure"))
    async def charge() -> None:
        raise ValueError("no money")

    @charge.on_final_failure
    async def clean_up(task: HookTask, seconds: float, error: ErrorRecord, transaction: Any) -> None:
        await ledger.note(task, seconds, error, transaction)
        said.append("on_final_failure")

    async with engine.worker():
        await failed(await charge.enqueue())
    assert said == ["on_final_failure", "on_failure"]


async def test_the_failure_is_logged_once(engine: Engine, ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    @engine.task
    async def charge() -> None:
        raise ValueError("no money")

    charge.on_final_failure(ledger.note)
    caplog.set_level(logging.WARNING)
    async with engine.worker():
        await failed(await charge.enqueue())
    assert caplog.text.count("has failed for good (error)") == 1


async def test_a_kind_has_one_before_a_worker_starts(engine: Engine) -> None:
    @engine.task
    async def charge() -> None: ...

    def clean_up(*_: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="decorates a function, got 7"):
        charge.on_final_failure(7)  # type: ignore[type-var]
    assert charge.on_final_failure(clean_up) is clean_up
    with pytest.raises(ConfigurationError, match="two functions for on_final_failure"):
        charge.on_final_failure(clean_up)

    @engine.task
    async def other() -> None: ...

    async with engine.worker():
        with pytest.raises(ConfigurationError, match="before a worker starts"):
            other.on_final_failure(clean_up)
