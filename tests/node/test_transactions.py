"""Work and tasks in one commit: `ctx.transaction()` inside a body, `conn=` outside."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, all_tasks, ended, until, until_state

from synergon import Context, Engine, NotAvailable, NotConnected, OptionError, Reason, Retry, Snooze, State


@pytest.fixture
def file(sqlite_url: str) -> Path:
    """The database, with a table of the user's own."""
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (name TEXT)")
    connection.close()
    return path


@pytest.fixture
async def engine(new_engine: NewEngine, sqlite_url: str, file: Path) -> AsyncIterator[Engine]:
    """An engine on that database."""
    engine = new_engine(sqlite_url)
    async with engine:
        yield engine


@pytest.fixture
def connection(file: Path, engine: Engine) -> Iterator[sqlite3.Connection]:
    """The user's own connection, as Python makes it."""
    connection = sqlite3.connect(file)
    yield connection
    connection.close()


def orders(file: Path) -> list[str]:
    """What the user's table holds, as everybody else sees it."""
    connection = sqlite3.connect(file)
    try:
        return [row[0] for row in connection.execute("SELECT name FROM orders ORDER BY name")]
    finally:
        connection.close()


# ---------------------------------------------------------------- ctx.transaction()


async def test_a_bodys_writes_its_children_and_its_success_are_one_commit(engine: Engine, file: Path) -> None:
    gate = Gate()

    @engine.task
    async def child() -> None: ...

    @engine.task
    async def order(ctx: Context, name: str) -> str:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES (?)", (name,))
            ctx.enqueue(child.with_options(delay=60).call())
        await gate.hold()
        return "ordered"

    async with engine.worker():
        handle = await order.enqueue("book")
        await gate.until_reached()
        assert orders(file) == []
        assert len(await all_tasks(engine)) == 1
        gate.open()
        assert await handle.result(PATIENCE_SECONDS) == "ordered"
        assert orders(file) == ["book"]
        assert len(await all_tasks(engine)) == 2


async def test_a_plain_function_has_a_transaction_too(engine: Engine, file: Path) -> None:
    @engine.task
    def order(ctx: Context, name: str) -> str:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES (?)", (name,))
        with ctx.transaction() as again:
            assert again is connection
        return "ordered"

    async with engine.worker():
        assert await (await order.enqueue("book")).result(PATIENCE_SECONDS) == "ordered"
    assert orders(file) == ["book"]


@pytest.mark.parametrize("end", ["failure", "snooze", "timeout", "result that is no JSON"])
async def test_whatever_makes_the_attempt_fail_rolls_its_writes_back(engine: Engine, file: Path, end: str) -> None:
    @engine.task(timeout=0.3)
    async def order(ctx: Context) -> object:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES ('book')")
        match end:
            case "failure":
                raise ValueError("after the insert")
            case "snooze":
                raise Snooze(60)
            case "timeout":
                await asyncio.sleep(60)
        return threading.Lock()

    async with engine.worker():
        await until_state(await order.enqueue(), State.FAILED, State.SCHEDULED)
    assert orders(file) == []


async def test_a_retry_writes_once(engine: Engine, file: Path) -> None:
    @engine.task(retry=Retry(attempts=3, first=0))
    async def order(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES (?)", (f"attempt {ctx.attempt}",))
        if ctx.attempt < 3:
            raise ValueError("again")

    async with engine.worker():
        await (await order.enqueue()).result(PATIENCE_SECONDS)
    assert orders(file) == ["attempt 3"]


@pytest.mark.usefixtures("quick_heartbeat")
async def test_a_claim_that_is_not_current_any_more_commits_nothing(
    new_engine: NewEngine, sqlite_url: str, file: Path
) -> None:
    """The node was taken for dead while the body held no lock yet: its late writes must not count."""
    engine = new_engine(sqlite_url, sweep=0.05)
    gate = Gate()

    @engine.task
    async def order(ctx: Context) -> str:
        if ctx.claim_no == 1:
            await gate.hold()
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES (?)", (f"claim {ctx.claim_no}",))
        return "ordered"

    async with engine.worker() as node:
        handle = await order.enqueue()
        await gate.until_reached()
        await engine._store.reap([node.id], 10)
        gate.open()
        record = await ended(handle)
        assert node.completer.stale == 1
    assert record.claim_no == 2
    assert orders(file) == ["claim 2"]


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_cancelled_body_commits_nothing(engine: Engine, file: Path, *, is_told: bool) -> None:
    gate = ThreadGate()

    @engine.task
    def order(ctx: Context) -> str:
        gate.hold()
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES ('book')")
        return "ordered"

    async with engine.worker():
        handle = await order.enqueue()
        await gate.until_reached()
        await (handle.cancel() if is_told else engine._store.cancel([handle.id]))
        gate.open()
        assert (await ended(handle)).state is State.CANCELLED
    assert orders(file) == []


async def test_a_transaction_that_is_held_too_long_is_rolled_back_and_says_so(
    new_engine: NewEngine, sqlite_url: str, file: Path
) -> None:
    engine = new_engine(sqlite_url, lease=6)

    @engine.task
    async def order(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES ('before')")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                await asyncio.sleep(0.01)
                try:
                    connection.execute("INSERT INTO orders VALUES ('after')")
                except sqlite3.Error:
                    return "was told"

    async with engine.worker():
        record = await ended(await order.enqueue())
        assert await engine.nodes(), "the lease has survived it"
    assert record.state is State.FAILED
    assert record.error is not None
    assert "ctx.transaction() was held for more than 2 s" in record.error.message
    assert orders(file) == []


@pytest.mark.parametrize("wraps", [False, True])
async def test_a_function_that_raises_after_it_was_rolled_back_is_told_why(
    new_engine: NewEngine, sqlite_url: str, file: Path, *, wraps: bool
) -> None:
    """SQLite itself says only that the statement is not authorized."""
    engine = new_engine(sqlite_url, lease=3)

    @engine.task
    async def order(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            while True:
                await asyncio.sleep(0.01)
                try:
                    connection.execute("INSERT INTO orders VALUES ('book')")
                except sqlite3.Error as error:
                    if wraps:
                        raise ValueError("the order cannot be stored") from error
                    raise

    async with engine.worker():
        record = await ended(await order.enqueue())
    assert record.error is not None
    assert "ctx.transaction() was held for more than 1 s" in record.error.message
    assert "sqlite3." in record.error.traceback, "the line that failed is told, too"
    assert orders(file) == []


# ---------------------------------------------------------------- a full disk


async def test_a_write_that_finds_the_disk_full_costs_the_task_nothing(engine: Engine, file: Path) -> None:
    @engine.task(retry=1)
    async def order(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES ('book')")
            if ctx.claim_no == 1:
                connection.execute("PRAGMA max_page_count = 1")  # the file may not grow
                connection.execute("INSERT INTO orders VALUES (hex(zeroblob(1000000)))")
        return ctx.claim_no

    async with engine.worker():
        handle = await order.enqueue()
        assert await handle.result(PATIENCE_SECONDS) == 2
        record = await handle.status()
    assert (record.attempts, record.errors) == (1, ())
    assert orders(file) == ["book"]


async def test_a_success_that_finds_the_disk_full_costs_the_task_nothing(engine: Engine, file: Path) -> None:
    @engine.task(retry=1)
    async def order(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES ('book')")
            if ctx.claim_no == 1:
                connection.execute("PRAGMA max_page_count = 1")
        return str(ctx.claim_no) * 500_000  # which the row of the success holds

    async with engine.worker():
        handle = await order.enqueue()
        assert (await handle.result(PATIENCE_SECONDS))[0] == "2"
        record = await handle.status()
    assert (record.attempts, record.errors) == (1, ())
    assert orders(file) == ["book"]


async def test_a_commit_that_the_disk_does_not_take_costs_the_task_nothing(
    engine: Engine, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No file of this process may grow beyond the current size of the log, until the attempt has ended."""
    log = file.with_name(f"{file.name}-wal")
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    @engine.task(retry=1)
    async def order(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES (hex(zeroblob(100000)))")
            if ctx.claim_no == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
        return ctx.claim_no

    try:
        async with engine.worker():
            handle = await order.enqueue()
            await until(lambda: "is not charged" in caplog.text)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert await handle.result(PATIENCE_SECONDS) == 2
            record = await handle.status()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (record.attempts, record.errors) == (1, ())
    assert len(orders(file)) == 1


async def test_another_transaction_gets_its_turn_after_a_full_disk(engine: Engine, file: Path) -> None:
    @engine.task(retry=1)
    def order(ctx: Context, number: int) -> None:
        with ctx.transaction() as connection:
            if ctx.claim_no == 1 and number % 2:
                connection.execute("PRAGMA max_page_count = 1")
                connection.execute("INSERT INTO orders VALUES (hex(zeroblob(1000000)))")
            connection.execute("INSERT INTO orders VALUES (?)", (f"{number}",))

    async with engine.worker():
        handles = await order.enqueue_many([(number,) for number in range(6)])
        await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles))
    assert orders(file) == [str(number) for number in range(6)]


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
async def test_a_body_that_ends_the_transaction_itself_has_failed(engine: Engine, file: Path, statement: str) -> None:
    @engine.task
    async def order(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES ('book')")
            connection.execute(statement)

    async with engine.worker():
        record = await ended(await order.enqueue())
    assert record.error is not None
    assert "the task function committed, rolled back or closed ctx.transaction() itself" in record.error.message


async def test_a_body_that_closes_the_connection_has_failed_and_the_node_lives_on(engine: Engine, file: Path) -> None:
    @engine.task
    async def order(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES ('book')")
            connection.close()

    @engine.task
    async def other() -> str:
        return "ran"

    async with engine.worker(concurrency=1):
        record = await ended(await order.enqueue())
        assert await (await other.enqueue()).result(PATIENCE_SECONDS) == "ran"
    assert record.state is State.FAILED
    assert orders(file) == []


async def test_many_bodies_with_transactions_take_turns(engine: Engine, file: Path) -> None:
    """One may write at a time; those that wait must not keep the one that writes from ending."""

    @engine.task
    async def order(ctx: Context, number: int) -> None:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES (?)", (f"{number:03}",))

    @engine.task
    def order_in_thread(ctx: Context, number: int) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES (?)", (f"{number:03}",))

    async with engine.worker(concurrency=40):
        handles = await engine.enqueue(
            [(order if number % 2 else order_in_thread).call(number) for number in range(40)]
        )
        await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles))
        assert {(await handle.status()).claim_no for handle in handles} == {1}, "nobody had to come again"
    assert orders(file) == [f"{number:03}" for number in range(40)]


async def test_a_body_that_is_ended_while_it_waits_for_its_turn_does_not_get_it_later(
    new_engine: NewEngine, sqlite_url: str, file: Path
) -> None:
    """The thread that waits for the lock cannot be stopped; what it gets must be given back at once."""
    engine = new_engine(sqlite_url, lease=3600)  # a transaction that nobody ends is rolled back in a third of it
    gate = Gate()

    @engine.task(timeout=0.2)
    async def order(ctx: Context) -> None:
        await gate.hold()
        async with ctx.transaction():
            pass

    async with engine.worker():
        holder = sqlite3.connect(file, isolation_level=None)
        handle = await order.enqueue()
        await gate.until_reached()
        holder.execute("BEGIN IMMEDIATE")
        gate.open()
        await asyncio.sleep(0.3)  # past the deadline of the body
        holder.execute("ROLLBACK")
        holder.close()
        assert (await ended(handle)).state is State.FAILED
        await asyncio.sleep(0.2)  # in which that thread gets the lock
        async with asyncio.timeout(PATIENCE_SECONDS):
            await engine.pause("other")


async def test_whoever_waits_is_told_of_such_a_success_at_once(engine: Engine, file: Path) -> None:
    """The engine sweeps once a minute here, so an end that is not told would be seen."""

    @engine.task
    async def order(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES ('book')")
        return "ordered"

    async with engine.worker():
        handle = await order.enqueue()
        waiter = asyncio.create_task(handle.result(PATIENCE_SECONDS))
        assert await waiter == "ordered"


async def test_a_coroutine_that_opens_it_in_the_way_of_threads_is_told_so(engine: Engine, file: Path) -> None:
    @engine.task
    async def order(ctx: Context) -> None:
        with ctx.transaction():
            pass

    async with engine.worker():
        record = await ended(await order.enqueue())
    assert record.error is not None
    assert "async with" in record.error.message


async def test_a_store_without_transactions_says_so(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def order(ctx: Context) -> None:
        async with ctx.transaction():
            pass

    async with engine.worker():
        record = await ended(await order.enqueue())
    assert record.error is not None
    assert record.error.type == "NotAvailable"
    assert "has no transactions, so ctx.transaction() cannot work; use sqlite:///" in record.error.message


async def test_a_process_body_says_so_too(engine: Engine) -> None:
    want_transaction = on(engine, process_bodies.want_transaction)
    async with engine.worker():
        record = await ended(await want_transaction.enqueue())
    assert record.reason is Reason.ERROR
    assert record.error is not None
    assert "ctx.transaction() is not available in a child process" in record.error.message


# ---------------------------------------------------------------- conn=


async def test_a_task_is_part_of_the_callers_transaction(
    engine: Engine, file: Path, connection: sqlite3.Connection
) -> None:
    @engine.task
    async def confirm(name: str) -> None: ...

    connection.execute("INSERT INTO orders VALUES ('book')")
    handle = await confirm.with_options(conn=connection).enqueue("book")
    assert await all_tasks(engine) == []
    connection.commit()
    (task,) = await all_tasks(engine)
    assert (task.id, task.state) == (handle.id, State.READY)
    assert orders(file) == ["book"]


async def test_what_is_rolled_back_never_existed(engine: Engine, file: Path, connection: sqlite3.Connection) -> None:
    @engine.task
    async def confirm(name: str) -> None: ...

    connection.execute("INSERT INTO orders VALUES ('book')")
    handles = await engine.enqueue([confirm.call("book"), confirm.call("pen")], conn=connection)
    connection.rollback()
    assert await all_tasks(engine) == []
    assert orders(file) == []
    after = await confirm.enqueue("later")
    assert len(handles) == 2
    assert [task.id for task in await all_tasks(engine)] == [after.id]


async def test_a_connection_that_opens_transactions_by_itself_gets_one(
    engine: Engine, connection: sqlite3.Connection
) -> None:
    @engine.task
    async def confirm() -> None: ...

    await confirm.with_options(conn=connection).enqueue()
    assert connection.in_transaction
    assert await all_tasks(engine) == []
    connection.commit()
    assert len(await all_tasks(engine)) == 1


async def test_keys_count_inside_the_callers_transaction(engine: Engine, connection: sqlite3.Connection) -> None:
    @engine.task
    async def confirm() -> None: ...

    live = await confirm.with_options(key="42").enqueue()
    handle = await confirm.with_options(key="42", conn=connection).enqueue()
    connection.commit()
    assert (handle.id, handle.created) == (live.id, False)


async def test_a_row_factory_of_the_callers_own_does_no_harm(engine: Engine, connection: sqlite3.Connection) -> None:
    @engine.task
    async def confirm() -> None: ...

    connection.row_factory = lambda cursor, row: {"columns": row}
    await confirm.with_options(conn=connection, key="1").enqueue()
    connection.commit()
    assert len(await all_tasks(engine)) == 1


async def test_a_task_that_came_by_a_connection_is_found_by_the_sweep(
    new_engine: NewEngine, sqlite_url: str, file: Path
) -> None:
    engine = new_engine(sqlite_url, sweep=0.05)

    @engine.task
    async def confirm() -> str:
        return "confirmed"

    async with engine.worker():
        connection = sqlite3.connect(file)
        try:
            handle = await confirm.with_options(conn=connection).enqueue()
            connection.commit()
        finally:
            connection.close()
        assert await handle.result(PATIENCE_SECONDS) == "confirmed"


async def test_a_connection_to_another_file_is_refused(engine: Engine, tmp_path: Path, file: Path) -> None:
    @engine.task
    async def confirm() -> None: ...

    for target, said in ((tmp_path / "other.db", "other.db"), (":memory:", "a database in memory")):
        connection = sqlite3.connect(target)
        connection.execute("CREATE TABLE x (y)")
        with pytest.raises(OptionError, match=f"conn is a connection to .*{said}, but the engine's database is"):
            await confirm.with_options(conn=connection).enqueue()
        connection.close()
    assert await all_tasks(engine) == []


async def test_a_connection_in_autocommit_without_a_transaction_is_refused(engine: Engine, file: Path) -> None:
    @engine.task
    async def confirm() -> None: ...

    connection = sqlite3.connect(file, isolation_level=None)
    with pytest.raises(OptionError, match="conn has no transaction open; execute BEGIN on it first"):
        await confirm.with_options(conn=connection).enqueue()
    connection.execute("BEGIN")
    await confirm.with_options(conn=connection).enqueue()
    connection.execute("COMMIT")
    connection.close()
    assert len(await all_tasks(engine)) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 connections have no autocommit attribute before 3.12")
async def test_a_connection_of_the_newer_kind_in_autocommit_is_refused_as_well(engine: Engine, file: Path) -> None:
    @engine.task
    async def confirm() -> None: ...

    newer: dict[str, Any] = {"autocommit": True}
    connection: sqlite3.Connection = sqlite3.connect(file, **newer)
    with pytest.raises(OptionError, match="conn has no transaction open; execute BEGIN on it first"):
        await confirm.with_options(conn=connection).enqueue()
    connection.close()
    assert await all_tasks(engine) == []


async def test_what_is_no_connection_is_refused(engine: Engine) -> None:
    @engine.task
    async def confirm() -> None: ...

    with pytest.raises(OptionError, match=r"conn must be a sqlite3.Connection to .*tasks.db, got str"):
        await confirm.with_options(conn="tasks.db").enqueue()


async def test_calls_that_name_different_connections_are_refused(
    engine: Engine, file: Path, connection: sqlite3.Connection
) -> None:
    @engine.task
    async def confirm() -> None: ...

    other = sqlite3.connect(file)
    first, second = confirm.with_options(conn=connection).call(), confirm.with_options(conn=other).call()
    for calls, conn in (([first, second], None), ([first], other), ([first, confirm.call()], None)):
        with pytest.raises(OptionError, match="one enqueue is one transaction"):
            await engine.enqueue(calls, conn=conn)
    other.close()
    assert await all_tasks(engine) == []


async def test_a_store_without_transactions_refuses_a_connection(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def confirm() -> None: ...

    connection = sqlite3.connect(":memory:")
    async with engine:
        with pytest.raises(NotAvailable, match="conn= cannot work; enqueue without it, or use sqlite:///"):
            await confirm.with_options(conn=connection).enqueue()
        assert await all_tasks(engine) == []
    connection.close()


@pytest.mark.parametrize("text_factory", [bytes, lambda word: word.decode().upper()], ids=["bytes", "of their own"])
async def test_how_the_callers_connection_reads_text_makes_no_difference(
    engine: Engine, connection: sqlite3.Connection, text_factory: Any
) -> None:
    @engine.task
    async def confirm() -> None: ...

    connection.text_factory = text_factory
    keyed = confirm.with_options(conn=connection, key="book")
    first, second = await keyed.enqueue(), await keyed.enqueue()
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert connection.text_factory is text_factory
    connection.rollback()


async def test_an_engine_that_is_not_connected_takes_no_connection(
    new_engine: NewEngine, sqlite_url: str, connection: sqlite3.Connection
) -> None:
    engine = new_engine(sqlite_url)

    @engine.task
    async def confirm() -> None: ...

    with pytest.raises(NotConnected):
        await confirm.with_options(conn=connection).enqueue()


def test_the_sync_twin_joins_the_callers_transaction_in_the_callers_thread(sqlite_url: str, file: Path) -> None:
    engine = Engine(sqlite_url)

    @engine.task
    async def confirm(name: str) -> None: ...

    with engine:
        connection = sqlite3.connect(file)  # which may be used in this thread only
        connection.execute("INSERT INTO orders VALUES ('book')")
        lost = confirm.with_options(conn=connection).enqueue_sync("lost")
        connection.rollback()
        kept, other = engine.enqueue_sync([confirm.call("kept"), confirm.call("other")], conn=connection)
        connection.commit()
        connection.close()
        assert kept.status_sync().arguments == {"name": "kept"}
        assert other.status_sync().state is State.READY
        assert lost.id < kept.id, "the id of what never existed is not another task's"


def test_the_first_call_of_an_engine_with_limits_may_be_made_inside_a_transaction(sqlite_url: str, file: Path) -> None:
    engine = Engine(sqlite_url)
    engine.limit("carrier", 3)
    engine.provider("printers", servers=["a", "b"])

    @engine.task(limits=["carrier"], max_running_global=2, limit_by="{order}", limit=1)
    async def ship(order: int) -> None: ...

    with engine:  # declares them, as another process has done
        engine.queues_sync()
    connection = sqlite3.connect(file)
    connection.execute("INSERT INTO orders VALUES ('tea')")
    handle = ship.with_options(conn=connection).enqueue_sync(1)
    connection.commit()
    connection.close()
    with engine:
        assert handle.status_sync().state is State.READY


async def test_a_body_waits_for_its_turn_while_somebody_else_holds_the_database(
    engine: Engine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synergon.stores.sqlite.task_transaction.LOCK_WAIT_SECONDS", 0.05)
    gate = Gate()

    @engine.task
    async def order(ctx: Context) -> None:
        await gate.hold()
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES ('book')")

    async with engine.worker():
        handle = await order.enqueue()
        await gate.until_reached()
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        gate.open()
        await asyncio.sleep(0.3)  # for as long as the lock is held
        assert orders(file) == []
        holder.execute("ROLLBACK")
        holder.close()
        await handle.result(PATIENCE_SECONDS)
    assert orders(file) == ["book"]
