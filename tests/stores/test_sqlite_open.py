"""Opening a SQLite file: beside other processes, and without a connection left behind when it fails."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from tests.stores.actions import PATIENCE_SECONDS

from synergon.errors import StoreError, StoreUnavailable
from synergon.stores.sqlite import SqliteStore, schema
from synergon.stores.sqlite.connection import connect

PROCESSES = 8
FILES = 20

SWITCH = "PRAGMA journal_mode = WAL"


def create_each(folder: Path, barrier: Barrier) -> None:
    for number in range(FILES):
        barrier.wait(PATIENCE_SECONDS)
        schema.prepare(folder / f"{number}.db")


def test_processes_that_create_one_file_at_once_all_open_it(tmp_path: Path) -> None:
    """They meet each other's locks by chance; the tests below hold a lock on purpose."""
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(PROCESSES)
    processes = [spawn.Process(target=create_each, args=(tmp_path, barrier)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_SECONDS)
    assert [process.exitcode for process in processes] == [0] * PROCESSES


class Watched(sqlite3.Connection):
    """A real connection that calls `before` with each statement, and knows whether it was closed."""

    before: Callable[[str], object] = staticmethod(lambda _: None)
    opened: list[Watched] = []  # noqa: RUF012  each test gives it a list of its own

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_closed = False
        self.opened.append(self)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        self.before(sql)
        return super().execute(sql, *parameters)

    def close(self) -> None:
        self.is_closed = True
        super().close()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    """The class of all connections that the test and the store open."""
    monkeypatch.setattr(Watched, "before", staticmethod(Watched.before))
    monkeypatch.setattr(Watched, "opened", [])
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Watched))
    return Watched


@contextmanager
def reader_of(path: Path) -> Iterator[sqlite3.Connection]:
    """Reads a file that is not in WAL mode; while it reads, SQLite cannot switch the file to that mode."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE notes (text)")
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM notes")
        yield connection


def test_a_lock_on_a_new_file_is_waited_for(tmp_path: Path, watched: type[Watched]) -> None:
    attempts = 0
    with reader_of(tmp_path / "tasks.db") as reader:

        def release_at_the_third(sql: str) -> None:
            nonlocal attempts
            attempts += sql == SWITCH
            if attempts == 3 and reader.in_transaction:
                reader.commit()

        watched.before = staticmethod(release_at_the_third)
        with closing(connect(tmp_path / "tasks.db", lock_wait_seconds=0)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert attempts == 3


def test_a_lock_that_is_not_released_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergon.stores.sqlite.connection.LOCK_WAIT_SECONDS", 0.05)
    path = tmp_path / "tasks.db"
    with reader_of(path), pytest.raises(StoreUnavailable, match=r"tasks\.db is locked by another writer"):
        connect(path, lock_wait_seconds=0)


async def test_an_open_that_fails_leaves_no_connection_behind(tmp_path: Path, watched: type[Watched]) -> None:
    """Whichever of its settings SQLite cannot make, on whichever connection."""
    settings = 0
    failing: int | None = None

    def fail(sql: str) -> None:
        nonlocal settings
        if sql.startswith("PRAGMA"):
            settings += 1
            if settings == failing:
                raise sqlite3.OperationalError("disk I/O error")

    watched.before = staticmethod(fail)
    url = f"sqlite:///{tmp_path}/tasks.db"
    await open_and_close(url)
    total = settings
    assert len(watched.opened) == 3, "that of the migration, the writer's and the reader's"
    for number in range(1, total + 1):
        settings, failing = 0, number
        with pytest.raises(StoreError, match="disk I/O error"):
            await open_and_close(url)
    assert all(connection.is_closed for connection in watched.opened)


async def open_and_close(url: str) -> None:
    store = SqliteStore(url)
    await store.open()
    await store.close()


def _modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir() if not file.is_symlink()}


async def test_a_new_file_and_those_beside_it_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        (tmp_path / "link.db").symlink_to(tmp_path / "app.db")
        store = SqliteStore(f"sqlite:///{tmp_path}/link.db")
        await store.open()
        await store.secret()
        modes = _modes(tmp_path)
        await store.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("app.db", "app.db-wal", "app.db-shm"), 0o600)


async def test_a_file_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "app.db"
    os.close(os.open(file, os.O_CREAT))
    os.chmod(file, 0o660)  # noqa: PTH101
    store = SqliteStore(f"sqlite:///{file}")
    await store.open()
    await store.close()
    assert _modes(tmp_path) == {"app.db": 0o660}
