"""Joining a caller's transaction and giving one to a body, where the store can; a clear refusal where it cannot."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from inspect import isawaitable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.stores.actions import (
    KIND,
    OUTCOMES,
    PATIENCE_SECONDS,
    Worker,
    add,
    demands,
    listed,
    read,
    settlement_of,
    state_of,
    until,
)
from tests.stores.callers import Caller, caller_of, write

from synergon.errors import KeyConflict, NotAvailable, OptionError, StoreError
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import State
from synergon.model.outcomes import Succeeded
from synergon.model.tasks import NewTask
from synergon.stores.base import Store, TaskTransaction
from synergon.stores.memory import MemoryStore
from synergon.stores.postgres import PostgresStore
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
        await store.insert_on(object(), [NewTask(kind=KIND)])
    with pytest.raises(NotAvailable, match="sqlite"):
        store.insert_on_sync(object(), [NewTask(kind=KIND)])
    with pytest.raises(NotAvailable, match="sqlite"):
        await store.begin(HOLD_SECONDS)


def test_the_stores_know_what_they_can() -> None:
    memory, sqlite = MemoryStore.capabilities, SqliteStore.capabilities
    assert (memory.shared, memory.durable, memory.transactions) == (False, False, False)
    assert (sqlite.shared, sqlite.durable, sqlite.transactions) == (True, True, True)
    postgres = PostgresStore("postgresql://host/database").capabilities
    assert (postgres.shared, postgres.durable, postgres.transactions) == (True, True, True)
    assert [memory.listens, sqlite.listens, postgres.listens] == [False, False, True]


# ---------------------------------------------------------------- the caller's own transaction


@pytest.fixture
async def caller(transactional: Store) -> AsyncIterator[Caller]:
    """Somebody with a connection to the store's database and a table of their own."""
    async with caller_of(transactional) as caller:
        yield caller


async def test_a_task_is_there_when_the_caller_commits(transactional: Store, caller: Caller) -> None:
    await caller.do("BEGIN")
    await caller.write("mine")
    (insertion,) = await transactional.insert_on(caller.connection, [NewTask(kind=KIND)])
    assert await listed(transactional) == []
    await caller.do("COMMIT")
    assert await listed(transactional) == [insertion.id]
    assert insertion.state is State.READY


async def test_nothing_is_there_when_the_caller_rolls_back(transactional: Store, caller: Caller) -> None:
    await caller.do("BEGIN")
    await transactional.insert_on(caller.connection, [NewTask(kind=KIND, key="a")])
    await caller.do("ROLLBACK")
    assert await listed(transactional) == []
    (insertion,) = await transactional.insert([NewTask(kind=KIND, key="a")])
    assert insertion.created


async def test_ids_of_a_joined_transaction_are_unique(transactional: Store, caller: Caller) -> None:
    first = await add(transactional)
    await caller.do("BEGIN")
    (joined,) = await transactional.insert_on(caller.connection, [NewTask(kind=KIND)])
    await caller.do("COMMIT")
    last = await add(transactional)
    assert first < joined.id < last


async def test_the_id_of_a_task_that_was_rolled_back_is_never_another_tasks(
    transactional: Store, caller: Caller
) -> None:
    """Neither in the next transaction of the caller nor in an insert without one."""
    told = [await add(transactional)]
    for _ in range(3):
        await caller.do("BEGIN")
        inserted = await transactional.insert_on(caller.connection, [NewTask(kind=KIND)] * 5)
        told += [insertion.id for insertion in inserted]
        await caller.do("ROLLBACK")
    told.append(await add(transactional))
    assert told == sorted(set(told))
    opened = await transactional.open_group(NewGroup(name="group", tasks=(NewTask(kind=KIND),)))
    assert opened.insertions[0].id > told[-1]


async def test_a_holder_that_a_caller_is_told_frees_no_ids(transactional: Store, caller: Caller) -> None:
    """The holder has a lower id than those of the transaction that was rolled back."""
    holder = await add(transactional, key="a")
    await caller.do("BEGIN")
    (lost,) = await transactional.insert_on(caller.connection, [NewTask(kind=KIND)])
    await caller.do("ROLLBACK")
    await caller.do("BEGIN")
    (found,) = await transactional.insert_on(caller.connection, [NewTask(kind=KIND, key="a")])
    await caller.do("COMMIT")
    assert found.id == holder
    assert await add(transactional) > lost.id


async def test_a_joined_task_says_what_it_demands(transactional: Store, caller: Caller) -> None:
    asked = [demands("east", cpu=2), ""]
    await caller.do("BEGIN")
    inserted = await transactional.insert_on(
        caller.connection, [NewTask(kind=KIND, requirements=text) for text in asked]
    )
    await caller.do("COMMIT")
    assert [(await read(transactional, entry.id)).requirements for entry in inserted] == asked


async def test_a_key_conflict_is_seen_inside_the_callers_transaction(transactional: Store, caller: Caller) -> None:
    holder = await add(transactional, key="a")
    await caller.do("BEGIN")
    (insertion,) = await transactional.insert_on(caller.connection, [NewTask(kind=KIND, key="a")])
    assert insertion.id == holder
    with pytest.raises(KeyConflict):
        await transactional.insert_on(
            caller.connection, [NewTask(kind=KIND), NewTask(kind=KIND, key="a", on_conflict="raise")]
        )
    await caller.do("COMMIT")
    assert await listed(transactional) == [holder], "a call that was refused has stored nothing"


async def test_a_task_of_the_callers_transaction_can_be_claimed(transactional: Store, caller: Caller) -> None:
    worker = await Worker.start(transactional)
    await caller.do("BEGIN")
    (insertion,) = await transactional.insert_on(caller.connection, [NewTask(kind=KIND, queue="brand new")])
    await caller.do("COMMIT")
    assert await worker.claim_ids() == [insertion.id]


async def test_a_connection_without_a_transaction_is_refused(transactional: Store, caller: Caller) -> None:
    with pytest.raises(OptionError):
        await transactional.insert_on(caller.connection, [NewTask(kind=KIND)])
    assert await listed(transactional) == []


async def test_a_connection_to_something_else_is_refused(transactional: Store, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as other:
        other.execute("BEGIN")
        with pytest.raises(OptionError):
            await transactional.insert_on(other, [NewTask(kind=KIND)])
    with pytest.raises(OptionError):
        await transactional.insert_on(object(), [NewTask(kind=KIND)])


# ---------------------------------------------------------------- a transaction for a body


@pytest.fixture
async def body(transactional: Store, caller: Caller) -> AsyncIterator[TaskTransaction]:
    """A transaction in which the body has written a word."""
    await Worker.start(transactional)
    await add(transactional)
    body = await transactional.begin(HOLD_SECONDS)
    await write(body.connection, caller.table, "by the body")
    yield body
    await body.rollback()


@pytest.fixture
async def claimed(transactional: Store) -> Any:
    """A claim that was made before the body opened its transaction."""
    worker = await Worker.start(transactional, "before")
    await add(transactional, kind="body")
    (claim,) = await worker.claim("body")
    return claim


async def test_what_the_body_wrote_its_children_and_its_success_are_one_commit(
    transactional: Store, claimed: Any, body: TaskTransaction, caller: Caller
) -> None:
    assert await caller.words() == []
    (verdict,) = await body.finish([settlement_of(claimed, Succeeded(children=(NewTask(kind="child"),)))])
    assert verdict.state is State.SUCCEEDED
    assert await caller.words() == ["by the body"]
    assert await listed(transactional, kinds=("child",)) == list(verdict.child_ids)
    assert await state_of(transactional, claimed.id) is State.SUCCEEDED


async def test_a_rollback_undoes_what_the_body_wrote(
    transactional: Store, claimed: Any, body: TaskTransaction, caller: Caller
) -> None:
    await body.rollback()
    await body.rollback()
    assert await caller.words() == []
    assert await state_of(transactional, claimed.id) is State.RUNNING


async def test_a_rollback_after_the_finish_does_nothing(
    transactional: Store, claimed: Any, body: TaskTransaction, caller: Caller
) -> None:
    await body.finish([settlement_of(claimed, OUTCOMES["succeeded"])])
    await body.rollback()
    assert await caller.words() == ["by the body"]
    assert await state_of(transactional, claimed.id) is State.SUCCEEDED


async def test_a_stale_claim_rolls_everything_back(transactional: Store, claimed: Any, caller: Caller) -> None:
    await transactional.reap(["before"], 10)
    body = await transactional.begin(HOLD_SECONDS)
    await write(body.connection, caller.table, "by the body")
    (verdict,) = await body.finish([settlement_of(claimed, Succeeded(children=(NewTask(kind="child"),)))])
    assert verdict.state is None
    assert await caller.words() == []
    assert await listed(transactional, kinds=("child",)) == []


async def test_what_somebody_wants_cancelled_rolls_everything_back(
    transactional: Store, claimed: Any, caller: Caller
) -> None:
    await transactional.cancel([claimed.id])
    body = await transactional.begin(HOLD_SECONDS)
    await write(body.connection, caller.table, "by the body")
    (verdict,) = await body.finish([settlement_of(claimed, OUTCOMES["succeeded"])])
    assert verdict.state is State.CANCELLED
    assert await caller.words() == []
    assert await state_of(transactional, claimed.id) is State.RUNNING, "its outcome takes the usual way"


async def _is_over(body: TaskTransaction) -> bool:
    """Whether the connection has stopped taking statements."""
    try:
        answer = body.connection.execute("SELECT 1")
        if isawaitable(answer):
            await answer
    except (sqlite3.DatabaseError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError):
        return True
    return False


async def test_a_transaction_that_is_held_too_long_is_rolled_back(
    transactional: Store, claimed: Any, caller: Caller
) -> None:
    body = await transactional.begin(0.2)
    with suppress(sqlite3.DatabaseError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError):  # it may be over
        await write(body.connection, caller.table, "by the body")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await add(transactional)  # waits until the lock is free again
        await until(lambda: _is_over(body))
    with pytest.raises(StoreError):
        await body.finish([settlement_of(claimed, OUTCOMES["succeeded"])])
    await body.rollback()
    assert await caller.words() == []
    assert await state_of(transactional, claimed.id) is State.RUNNING


async def test_a_body_that_commits_by_itself_is_found_out(transactional: Store, claimed: Any, caller: Caller) -> None:
    for own_ending in (["COMMIT"], ["ROLLBACK"], ["COMMIT", "BEGIN"]):
        body = await transactional.begin(HOLD_SECONDS)
        if isinstance(transactional, SqliteStore) and "BEGIN" in own_ending:
            await body.rollback()
            continue
        for word in own_ending:
            await Caller(body.connection, caller.table).do(word)
        with pytest.raises(StoreError, match="leave that to synergon"):
            await body.finish([settlement_of(claimed, OUTCOMES["succeeded"])])
        await body.rollback()
    assert await state_of(transactional, claimed.id) is State.RUNNING
