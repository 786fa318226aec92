"""Opening the file, and reading what SQLite says when something is wrong."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from synergon.errors import ConfigurationError, DataRejected, StoreError, StoreUnavailable

LOCK_WAIT_SECONDS: Final = 1.0
"""How long one statement waits for another process's lock before the caller gets a say."""

OLDEST_SQLITE: Final = (3, 35, 0)

_PASSING: Final = {
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

_ABOUT_THE_DATA: Final = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError)


def path_of(url: str) -> Path:
    """The file a `sqlite:///` URL names: three slashes for a relative path, four for an absolute one."""
    rest = url.removeprefix("sqlite:///")
    if rest == url or not rest or rest.startswith(":memory:"):
        raise ConfigurationError(
            f"{url!r} names no file; write sqlite:///app.db, sqlite:////absolute/app.db, or memory:// for none"
        )
    if "?" in rest or "#" in rest:
        raise ConfigurationError(f"a sqlite:/// URL takes no parameters, got {url!r}")
    return Path(unquote(rest))


def connect(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode (transactions are opened by hand), WAL, every commit synced to the disk."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; synergon needs 3.35 or newer")
    if not path.absolute().parent.is_dir():
        raise StoreError(f"the folder {path.absolute().parent} does not exist; create it, or name another file")
    reject_folder(path)
    try:
        connection = sqlite3.connect(
            path, timeout=LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=512
        )
    except sqlite3.Error as error:
        raise translate(error, path) from error
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -32768")
        connection.execute("PRAGMA temp_store = MEMORY")
    except sqlite3.Error as error:
        connection.close()
        raise translate(error, path) from error
    return connection


def reject_folder(path: Path) -> None:
    """SQLite would only say that it cannot read it."""
    if path.is_dir():
        raise StoreError(f"{path.resolve()} is a folder; name a file in it, as in sqlite:///{path / 'app.db'}")


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """The error of ours that tells whether trying again may help."""
    code = getattr(error, "sqlite_errorcode", None)
    passing = _PASSING.get(code & 0xFF) if code is not None else None
    if passing is not None:
        return StoreUnavailable(f"the database {path} {passing} ({error})")
    if code == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{path} is not a SQLite database; name another file")
    rejection = DataRejected if isinstance(error, _ABOUT_THE_DATA) else StoreError
    return rejection(f"the database {path} rejected a statement: {error}")
