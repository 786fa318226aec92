"""Ids that a caller's own transaction was told on SQLite, which undoes its sequence when the caller rolls back."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.stores.actions import KIND, add

from synergon.errors import StoreUnavailable
from synergon.model.tasks import NewTask
from synergon.stores.sqlite import SqliteStore


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(sqlite_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def connection(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        yield connection


def _ids_file(store: SqliteStore) -> Path:
    return store.path.with_name(f"{store.path.name}-ids")


async def _enqueue_and_roll_back(store: SqliteStore, connection: sqlite3.Connection) -> int:
    connection.execute("BEGIN")
    (insertion,) = await store.insert_on(connection, [NewTask(kind=KIND)])
    connection.execute("ROLLBACK")
    return insertion.id


async def test_another_engine_and_a_later_one_know_the_ids(store: SqliteStore, connection: sqlite3.Connection) -> None:
    """They hold nothing in memory, as if they were other processes."""
    other = SqliteStore(store.url)
    await other.open()
    told = await _enqueue_and_roll_back(store, connection)
    first = await add(other)
    await other.close()
    told_later = await _enqueue_and_roll_back(store, connection)
    await store.close()
    later = SqliteStore(store.url)
    await later.open()
    last = await add(later)
    await later.close()
    assert told < first < told_later < last


async def test_a_transaction_that_has_only_read_knows_them_too(
    store: SqliteStore, connection: sqlite3.Connection
) -> None:
    """The other one rolls back after the snapshot of this one began, so the database tells it nothing."""
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM synergon_task").fetchone()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        told = await _enqueue_and_roll_back(store, other)
    (insertion,) = await store.insert_on(connection, [NewTask(kind=KIND)])
    connection.execute("COMMIT")
    assert insertion.id > told


async def test_a_link_to_the_database_is_the_database(
    store: SqliteStore, connection: sqlite3.Connection, tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to(store.path)
    linked = SqliteStore(f"sqlite:///{tmp_path}/link.db")
    await linked.open()
    told = await _enqueue_and_roll_back(linked, connection)
    await linked.close()
    assert await add(store) > told


async def test_the_file_of_ids_has_the_mode_of_the_database(store: SqliteStore, connection: sqlite3.Connection) -> None:
    assert not _ids_file(store).exists()
    store.path.chmod(0o660)
    await _enqueue_and_roll_back(store, connection)
    assert stat.S_IMODE(_ids_file(store).stat().st_mode) == 0o660


@pytest.mark.parametrize("content", [b"", b"\0" * 20, b"nonsense"])
async def test_a_file_of_ids_without_a_number_blocks_nothing(store: SqliteStore, content: bytes) -> None:
    """A power failure may leave it so."""
    _ids_file(store).write_bytes(content)
    assert await add(store) > 0


async def test_a_file_of_ids_that_cannot_be_opened_is_named(store: SqliteStore) -> None:
    _ids_file(store).mkdir()
    with pytest.raises(StoreUnavailable, match="-ids"):
        await add(store)
