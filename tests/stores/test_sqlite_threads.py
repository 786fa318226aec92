"""The threads of a SQLite store outlive every error: each caller is answered, and later ones are served."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.stores.actions import PATIENCE_SECONDS, add

from synergon.errors import StoreError
from synergon.model.tasks import NewTask
from synergon.stores.sqlite import SqliteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{tmp_path}/tasks.db")
    await store.open()
    yield store
    async with asyncio.timeout(PATIENCE_SECONDS):
        await store.close()


TOO_MUCH = NewTask(kind="work", priority=2**70)
"""SQLite has no such number; that is found out when the rows of the whole group are written."""


async def test_a_value_that_cannot_be_handed_to_sqlite_fails_alone(store: SqliteStore) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(OverflowError):
            await store.insert([TOO_MUCH])
        *ids, refused, last = await asyncio.gather(
            *(add(store) for _ in range(3)), store.insert([TOO_MUCH]), add(store), return_exceptions=True
        )
        assert isinstance(refused, OverflowError)
        assert all(await store.get([*ids, last]))  # type: ignore[list-item]  # these are ids
        assert len({*ids, last}) == 4


class Unsteady:
    """The real connection, on which a statement fails a number of times: as on a disk that cannot be read."""

    def __init__(self, connection: sqlite3.Connection, statement: str, failures: int) -> None:
        self._connection = connection
        self._statement = statement
        self._failures = failures

    def execute(self, statement: str) -> sqlite3.Cursor:
        if statement == self._statement and self._failures:
            self._failures -= 1
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_a_rollback_that_fails_is_the_callers_error_and_no_end_of_the_writer(
    store: SqliteStore, failures: int
) -> None:
    writer = store._writer
    assert writer is not None
    # A stand-in for the connection, which fails where it is told to.
    writer.connection = Unsteady(writer.connection, "ROLLBACK", failures)  # type: ignore[assignment]
    async with asyncio.timeout(PATIENCE_SECONDS):
        outcomes = await asyncio.gather(
            *(store.insert([TOO_MUCH if number % 2 else NewTask(kind="work")]) for number in range(4)),
            return_exceptions=True,
        )
        assert any(isinstance(outcome, StoreError) for outcome in outcomes)
        for _ in range(failures):
            await asyncio.gather(add(store), return_exceptions=True)
        task_id = await add(store)
        (record,) = await store.get([task_id])
    assert record is not None


async def test_a_read_that_cannot_be_ended_fails_alone(store: SqliteStore) -> None:
    reader = store._reader
    assert reader is not None
    # A stand-in for the connection, which fails where it is told to.
    reader.connection = Unsteady(reader.connection, "ROLLBACK", 1)  # type: ignore[assignment]
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(StoreError, match="disk I/O error"):
            await store.now()
        assert await store.now() > 0
