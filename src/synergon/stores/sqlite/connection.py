"""Connects to the file of a SQLite store, waits for its locks, and translates the errors of SQLite."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from synergon.errors import ConfigurationError, DataRejected, StoreError, StoreUnavailable
from synergon.stores.slow_statements import SlowStatements, check_slow
from synergon.stores.sqlite.timed_connection import TimedConnection

LOCK_WAIT_SECONDS: Final = 1.0
"""How many seconds one statement waits for a lock that another process holds."""

FIRST_RETRY_SECONDS: Final = 0.0005
LAST_RETRY_SECONDS: Final = 0.02
"""The pauses between attempts to get a lock grow from FIRST_RETRY_SECONDS to LAST_RETRY_SECONDS."""

CHECKPOINT_PAGES: Final = 8000
"""The size of the write-ahead log, in pages, at which SQLite copies it into the file: 32 MiB. A commit that advances
many flows changes thousands of pages. With SQLite's default of 1000, each such commit would copy all of them."""

OLDEST_SQLITE: Final = (3, 37, 0)
"""The first version with STRICT tables, which reject values of a wrong type."""

_TRANSIENT: Final = {
    sqlite3.SQLITE_BUSY: "is locked by another writer",
    sqlite3.SQLITE_LOCKED: "is locked by another writer",
    sqlite3.SQLITE_FULL: "cannot grow because the disk is full; free some space",
    sqlite3.SQLITE_READONLY: "is read-only; give this process the right to write it and its folder",
    sqlite3.SQLITE_IOERR: "could not be read or written; look at the disk",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that its folder exists and may be written",
    sqlite3.SQLITE_INTERRUPT: "was interrupted",
    sqlite3.SQLITE_PROTOCOL: "is locked by another writer",
    sqlite3.SQLITE_NOMEM: "could not be used for lack of memory",
}

_DATA_ERRORS: Final = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError)


def path_of(url: str) -> Path:
    """The file that a `sqlite:///` URL names: three slashes for a relative path, four for an absolute one."""
    written = url.partition("?")[0]
    rest = written.removeprefix("sqlite:///")
    if rest == written or not rest or rest.startswith(":memory:"):
        raise ConfigurationError(
            f"{url!r} names no file; write sqlite:///app.db, sqlite:////absolute/app.db, or memory:// for none"
        )
    if "#" in rest:
        raise ConfigurationError(f"escape # in a sqlite:/// URL as %23, got {url!r}")
    return Path(unquote(rest))


def slow_seconds_of(url: str) -> float | None:
    """The parameter `slow` of the URL in seconds. None if the URL does not have it. Raises if the URL has other
    parameters."""
    given = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
    slow = given.pop("slow", None)
    if given:
        raise ConfigurationError(f"a sqlite:/// URL takes no parameters but slow, as in ?slow=500ms, got {url!r}")
    return check_slow(slow)


def connect(
    path: Path, *, lock_wait_seconds: float = LOCK_WAIT_SECONDS, slow: SlowStatements | None = None
) -> sqlite3.Connection:
    """Open a connection in autocommit mode (the store begins transactions itself), with WAL and a sync of every commit.

    A statement waits up to `lock_wait_seconds` for a lock. Callers that use `retry_while_locked` pass 0. With `slow`,
    statements are measured.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; synergon needs 3.37 or newer")
    if not path.absolute().parent.is_dir():
        raise StoreError(f"the folder {path.absolute().parent} does not exist; create it, or name another file")
    reject_folder(path)
    _create_private(path)
    timed: dict[str, Any] = {} if slow is None else {"factory": TimedConnection}
    try:
        connection: sqlite3.Connection = sqlite3.connect(
            path,
            timeout=lock_wait_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
            **timed,
        )
    except sqlite3.Error as error:
        raise translate(error, path) from error
    try:
        # SQLite does not wait while another process creates or closes the file, so this fails at once.
        retry_while_locked(
            lambda: connection.execute("PRAGMA journal_mode = WAL"), max(lock_wait_seconds, LOCK_WAIT_SECONDS)
        )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -32768")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    except sqlite3.Error as error:
        connection.close()
        raise translate(error, path) from error
    if isinstance(connection, TimedConnection):
        connection.slow = slow
    return connection


def _create_private(path: Path) -> None:
    """Create the file, if it does not exist, so that only its owner can read it: it contains arguments of tasks and the
    secret of the peers.

    SQLite gives the files beside it the mode of this file. An existing file retains its mode and is not opened: closing
    it would release the locks that this process has on it.
    """
    with suppress(OSError):  # it exists, or SQLite says what is wrong
        os.close(os.open(path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def retry_while_locked(execute: Callable[[], object], seconds: float) -> None:
    """Call `execute` until it gets its lock. After `seconds`, raise SQLite's error."""
    start = time.monotonic()
    while True:
        try:
            execute()
            return
        except sqlite3.OperationalError as error:
            waited = time.monotonic() - start
            if primary_code(error) != sqlite3.SQLITE_BUSY or waited > seconds:
                raise
        # Not time.sleep: it computes an absolute moment, which fails if the clock steps.
        threading.Event().wait(min(max(waited / 10, FIRST_RETRY_SECONDS), LAST_RETRY_SECONDS))


def reject_folder(path: Path) -> None:
    """Raise StoreError if `path` is a folder. SQLite would only report that it cannot open the file."""
    if path.is_dir():
        raise StoreError(f"{path.resolve()} is a folder; name a file in it, as in sqlite:///{path / 'app.db'}")


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """The StoreError for an error of SQLite: StoreUnavailable if another attempt may succeed."""
    code = primary_code(error)
    if code in _TRANSIENT:
        return StoreUnavailable(f"the database {path} {_TRANSIENT[code]} ({error})")
    if code == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{path} is not a SQLite database; name another file")
    error_class = DataRejected if isinstance(error, _DATA_ERRORS) else StoreError
    return error_class(f"the database {path} rejected a statement: {error}")


def is_undecodable(error: Exception) -> bool:
    """Whether the error means that a row has a text that is not UTF-8. Python's driver raises it without an error
    code."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode to UTF-8")


def primary_code(error: Exception) -> int | None:
    """The result code of SQLite without its extended part. None if the error is not from SQLite."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if code is not None else None
