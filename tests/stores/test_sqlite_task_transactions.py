"""The transactions of bodies on SQLite, when one is held for too long."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support import PATIENCE_SECONDS

from synergon.stores.sqlite import SqliteStore
from synergon.stores.sqlite.task_transaction import SqliteTaskTransaction


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(sqlite_url)
    await store.open()
    yield store
    await store.close()


ENDLESS = "WITH RECURSIVE number(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM number) SELECT value FROM number"


class Racing(sqlite3.Connection):
    """The body's thread writes as soon as its transaction is rolled back."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *parameters)
        if sql == "ROLLBACK":
            with suppress(sqlite3.Error):
                super().execute("INSERT INTO orders VALUES ('after')")
        return cursor


def test_a_body_whose_transaction_was_rolled_back_writes_nothing_on_its_own(path: Path) -> None:
    was_ended = threading.Event()
    with closing(sqlite3.connect(path, factory=Racing, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("CREATE TABLE orders (name TEXT)")
        connection.execute("BEGIN IMMEDIATE")
        SqliteTaskTransaction(connection, path, 0.01, was_ended.set)
        assert was_ended.wait(PATIENCE_SECONDS)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM orders").fetchall() == []


@pytest.mark.parametrize("does", ["has read half", "reads on", "reads in one step"])
def test_a_transaction_is_rolled_back_whatever_its_body_does_meanwhile(path: Path, does: str) -> None:
    was_ended = threading.Event()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("CREATE TABLE orders (name TEXT)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO orders VALUES ('before')")
        numbers = connection.execute(ENDLESS)
        assert numbers.fetchone() == (1,)
        body = SqliteTaskTransaction(connection, path, 0.01, was_ended.set)
        if does == "reads on":
            while not was_ended.is_set():
                with suppress(sqlite3.OperationalError):  # interrupted, if the rollback had to wait
                    numbers.fetchone()
        elif does == "reads in one step":
            numbers.close()
            with suppress(sqlite3.OperationalError):  # interrupted, unless the rollback came first
                connection.execute(f"SELECT sum(value) FROM ({ENDLESS})")
        assert was_ended.wait(PATIENCE_SECONDS)
        assert not body.connection_is_usable()
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert other.execute("SELECT name FROM orders").fetchall() == []


async def test_a_body_that_lost_its_turn_does_not_end_the_turn_of_the_next_one(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    late = await store.begin(0.01)
    following = await store.begin(3600)
    await late.rollback()
    assert store._transaction_lock.locked()
    await following.rollback()
    assert not store._transaction_lock.locked()
    assert caplog.records == []
