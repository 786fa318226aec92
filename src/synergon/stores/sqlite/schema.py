"""Creates and migrates the tables of the SQLite store. Each version is one file. The missing versions are applied in
order, in one transaction."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Final

from synergon.errors import SchemaError, StoreError
from synergon.stores.base import read_version
from synergon.stores.sqlite.connection import connect, reject_folder, translate
from synergon.stores.sqlite.transaction import Transaction

MIGRATION_WAIT_SECONDS: Final = 30.0


def migrations() -> list[str]:
    """The migration scripts, in order. The first creates version 1."""
    folder = files("synergon.stores").joinpath("sqlite/migrations")
    return [file.read_text(encoding="utf-8") for file in sorted(folder.iterdir(), key=lambda entry: entry.name)]


def prepare(path: Path) -> None:
    """Migrate the file to the version of this code. Any number of processes may do this at once. Raises `SchemaError`
    if the file is newer, or belongs to another program."""
    connection = connect(path, lock_wait_seconds=MIGRATION_WAIT_SECONDS)
    try:
        if _version(connection) != len(migrations()):
            _migrate(connection, path)
    except sqlite3.Error as error:
        raise translate(error, path) from error
    finally:
        connection.close()


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    version, scripts = 0, migrations()
    try:
        version = _version(connection)
        if version > len(scripts):
            raise SchemaError(
                f"{path} was made by a newer synergon: its schema has version {version}, this code knows "
                f"{len(scripts)}; upgrade synergon, or use another file"
            )
        for statement in statements(version):
            connection.execute(statement)
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if version == 0 and str(error).endswith("already exists"):
            raise SchemaError(
                f"{path} belongs to another program: the {error}, not made by synergon; rename it, or use another file"
            ) from error
        raise
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def statements(version: int) -> Iterator[str]:
    """The statements that migrate a database from this version to the version of this code."""
    scripts = migrations()
    for script in scripts[version:]:
        yield from split(script)
    if version == 0:
        yield "CREATE TABLE synergon_meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;\n"
    yield f"INSERT OR REPLACE INTO synergon_meta VALUES ('schema_version', {len(scripts)});\n"


def split(script: str) -> Iterator[str]:
    """Split a script into statements. Triggers contain semicolons, so SQLite itself decides where a statement ends."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        raise StoreError(f"a migration ends in the middle of a statement: {statement.strip()[:80]!r}")


def _version(connection: sqlite3.Connection) -> int:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'synergon_meta'").fetchone()
    if known is None:
        return 0
    columns = {column[1] for column in connection.execute("PRAGMA table_info(synergon_meta)")}
    if not columns >= {"name", "value"}:  # a table of another program
        return 0
    row = connection.execute("SELECT value FROM synergon_meta WHERE name = 'schema_version'").fetchone()
    return read_version(row[0], "the file") if row is not None else 0


def version_at(path: Path) -> int | None:
    """Read the schema version of the file without changing it. 0 if it has no tables of synergon. None if there is no
    file."""
    if not path.exists():
        return None
    reject_folder(path)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return _version(connection)
    except sqlite3.Error as error:
        raise translate(error, path) from error


def make_secret(transaction: Transaction) -> bytes:
    """The secret with which peers sign their messages. Creates it, unless another process has done so."""
    transaction.run("make_secret", secrets.token_bytes(32))
    secret: bytes = transaction.row("secret")[0]
    return secret


def replace_secret(transaction: Transaction) -> None:
    """Generate a new secret. The first one remains stored, as the identity of the store."""
    make_secret(transaction)
    transaction.run("keep_first_secret")
    transaction.run("replace_secret", secrets.token_bytes(32))


def version_of(transaction: Transaction) -> int:
    """The schema version of the file."""
    rows = transaction.select("SELECT value FROM synergon_meta WHERE name = 'schema_version'", ())
    return read_version(rows[0][0], "the file")
