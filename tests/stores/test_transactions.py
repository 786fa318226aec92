"""Joining a caller's transaction and giving one to a body, where the store can; a clear refusal where it cannot."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.stores.actions import KIND, OUTCOMES, Worker, add, listed, settlement_of, state_of

from synergon.errors import KeyConflict, NotAvailable, OptionError, StoreError
from synergon.lifecycle import State
from synergon.records import NewTask, Succeeded
from synergon.stores.base import BodyTransaction, Store
from synergon.stores.memory import MemoryStore
from synergon.stores.sqlite import SqliteStore

HOLD_SECONDS = 10.0


@pytest.fixture
def transactional(store: Store) -> Store:
    if not store.capabilities.transactions:
        pytest.skip("this store has no transactions")
    return store


# ---------------------------------------------------------------- stores that cannot


async def test_a_store_without_transactions_says_so_and_what_to_do(store: Store) -> None:
    if store.capabilities.transactions:
        pytest.skip("this store has transactions")
    with pytest.raises(NotAvailable, match="sqlite"):
        store.insert_on(object(), [NewTask(kind=KIND)])
    with pytest.raises(NotAvailable, match="sqlite"):
        await store.begin(HOLD_SECONDS)


def test_the_stores_know_what_they_can() -> None:
    memory, sqlite = MemoryStore.capabilities, SqliteStore.capabilities
    assert (memory.shared, memory.durable, memory.transactions) == (False, False, False)
    assert (sqlite.shared, sqlite.durable, sqlite.transactions) == (True, True, True)


# ---------------------------------------------------------------- the caller's own transaction


@pytest.fixture
def connection(transactional: Store) -> Iterator[Any]:
    """A connection of the caller's own to the store's database, with a table of the caller's own."""
    assert isinstance(transactional, SqliteStore), "tell here how to connect to this store"
    with closing(sqlite3.connect(transactional.path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE mine (word TEXT)")
        yield connection


async def test_a_task_is_there_when_the_caller_commits(transactional: Store, connection: Any) -> None:
    connection.execute("BEGIN")
    connection.execute("INSERT INTO mine VALUES ('mine')")
    (insertion,) = transactional.insert_on(connection, [NewTask(kind=KIND)])
    assert await listed(transactional) == []
    connection.execute("COMMIT")
    assert await listed(transactional) == [insertion.id]
    assert insertion.state is State.READY


async def test_nothing_is_there_when_the_caller_rolls_back(transactional: Store, connection: Any) -> None:
    connection.execute("BEGIN")
    transactional.insert_on(connection, [NewTask(kind=KIND, key="a")])
    connection.execute("ROLLBACK")
    assert await listed(transactional) == []
    (insertion,) = await transactional.insert([NewTask(kind=KIND, key="a")])
    assert insertion.created


async def test_ids_of_a_joined_transaction_are_unique(transactional: Store, connection: Any) -> None:
    first = await add(transactional)
    connection.execute("BEGIN")
    (joined,) = transactional.insert_on(connection, [NewTask(kind=KIND)])
    connection.execute("COMMIT")
    last = await add(transactional)
    assert first < joined.id < last


async def test_a_key_conflict_is_seen_inside_the_callers_transaction(transactional: Store, connection: Any) -> None:
    holder = await add(transactional, key="a")
    connection.execute("BEGIN")
    assert transactional.insert_on(connection, [NewTask(kind=KIND, key="a")])[0].id == holder
    with pytest.raises(KeyConflict):
        transactional.insert_on(connection, [NewTask(kind=KIND, key="a", on_conflict="raise")])
    connection.execute("ROLLBACK")


async def test_a_task_of_the_callers_transaction_can_be_claimed(transactional: Store, connection: Any) -> None:
    worker = await Worker.start(transactional)
    connection.execute("BEGIN")
    (insertion,) = transactional.insert_on(connection, [NewTask(kind=KIND, queue="brand new")])
    connection.execute("COMMIT")
    assert await worker.claim_ids() == [insertion.id]


async def test_a_connection_without_a_transaction_is_refused(transactional: Store, connection: Any) -> None:
    with pytest.raises(OptionError):
        transactional.insert_on(connection, [NewTask(kind=KIND)])
    assert await listed(transactional) == []


async def test_a_connection_to_something_else_is_refused(transactional: Store, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as other:
        other.execute("BEGIN")
        with pytest.raises(OptionError):
            transactional.insert_on(other, [NewTask(kind=KIND)])
    with pytest.raises(OptionError):
        transactional.insert_on(object(), [NewTask(kind=KIND)])


# ---------------------------------------------------------------- a transaction for a body


@pytest.fixture
async def body(transactional: Store, connection: Any) -> AsyncIterator[BodyTransaction]:
    """A transaction in which the body has written a word."""
    await Worker.start(transactional)
    await add(transactional)
    body = await transactional.begin(HOLD_SECONDS)
    body.connection.execute("INSERT INTO mine VALUES ('by the body')")
    yield body
    await body.rollback()


def _words(connection: Any) -> list[str]:
    return [word for (word,) in connection.execute("SELECT word FROM mine")]


@pytest.fixture
async def claimed(transactional: Store) -> Any:
    """A claim that was made before the body opened its transaction."""
    worker = await Worker.start(transactional, "before")
    await add(transactional, kind="body")
    (claim,) = await worker.claim("body")
    return claim


async def test_what_the_body_wrote_its_children_and_its_success_are_one_commit(
    transactional: Store, claimed: Any, body: BodyTransaction, connection: Any
) -> None:
    assert _words(connection) == []
    verdict = await body.finish(settlement_of(claimed, Succeeded(children=(NewTask(kind="child"),))))
    assert verdict.state is State.SUCCEEDED
    assert _words(connection) == ["by the body"]
    assert await listed(transactional, kind="child") == list(verdict.child_ids)
    assert await state_of(transactional, claimed.id) is State.SUCCEEDED


async def test_a_rollback_undoes_what_the_body_wrote(
    transactional: Store, claimed: Any, body: BodyTransaction, connection: Any
) -> None:
    await body.rollback()
    await body.rollback()
    assert _words(connection) == []
    assert await state_of(transactional, claimed.id) is State.RUNNING


async def test_a_rollback_after_the_finish_does_nothing(
    transactional: Store, claimed: Any, body: BodyTransaction, connection: Any
) -> None:
    await body.finish(settlement_of(claimed, OUTCOMES["succeeded"]))
    await body.rollback()
    assert _words(connection) == ["by the body"]
    assert await state_of(transactional, claimed.id) is State.SUCCEEDED


async def test_a_stale_claim_rolls_everything_back(transactional: Store, claimed: Any, connection: Any) -> None:
    await transactional.reap(["before"], 10)
    body = await transactional.begin(HOLD_SECONDS)
    body.connection.execute("INSERT INTO mine VALUES ('by the body')")
    verdict = await body.finish(settlement_of(claimed, Succeeded(children=(NewTask(kind="child"),))))
    assert verdict.state is None
    assert _words(connection) == []
    assert await listed(transactional, kind="child") == []


async def test_a_transaction_that_is_held_too_long_is_rolled_back(
    transactional: Store, claimed: Any, connection: Any
) -> None:
    body = await transactional.begin(0.01)
    body.connection.execute("INSERT INTO mine VALUES ('by the body')")
    async with asyncio.timeout(5):
        await add(transactional)  # waits until the lock is free again
    with pytest.raises(StoreError):
        await body.finish(settlement_of(claimed, OUTCOMES["succeeded"]))
    await body.rollback()
    assert _words(connection) == []
    assert await state_of(transactional, claimed.id) is State.RUNNING
