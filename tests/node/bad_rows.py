"""A database with bad rows, made from its own schema: each column of each table, with each kind of bad value.

A cell is a copy of a good row with one bad value. Where the database itself refuses the value, there is no such row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import psycopg
from psycopg.sql import SQL, Identifier
from tests.postgres_server import SCHEMA, administer, server_url
from tests.support import NESTED

NEWER: Final = '{"version": 2, "state": {"fresh": [1, {"a": null}]}}'
NONSENSE: Final = "no {sense"
MANY_DIGITS: Final = "9" * 400

Row = dict[str, Any]


class Column(NamedTuple):
    """A column of the schema."""

    name: str
    type: str


class Cell(NamedTuple):
    """A bad value in a column of a row."""

    table: str
    column: str
    badness: str
    key: Any
    """The first column of the primary key."""

    def __str__(self) -> str:
        return f"{self.table}.{self.column} is {self.badness} ({self.key})"


class RawText(NamedTuple):
    """Bytes that are stored as text."""

    content: bytes


class Database(Protocol):
    """Tables as another program sees them."""

    @property
    def tables(self) -> Sequence[str]:
        """The names of the tables."""

    def columns(self, table: str) -> list[Column]:
        """The columns of a table."""

    def key(self, table: str) -> str:
        """The first column of the primary key."""

    def bad_values(self, column: Column) -> Iterator[tuple[str, Any]]:
        """The bad values for a column, by name."""

    def rows(self, table: str, where: str = "true") -> list[Row]:
        """Rows of a table."""

    def insert(self, table: str, row: Row) -> bool:
        """Insert a row; False if the database refuses it."""

    def update(self, table: str, column: str, value: Any) -> bool:
        """Set a column of all rows; False if the database refuses it."""

    def close(self) -> None:
        """Disconnect."""

    def kept(self, table: str) -> AbstractContextManager[bool]:
        """Restores the rows of a table at the end; False if it has none."""


class SqliteDatabase:
    """The tables of a SQLite file."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.row_factory = sqlite3.Row
        names = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = sorted(name for (name,) in names if name.startswith("synergon_"))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def columns(self, table: str) -> list[Column]:
        """The columns of a table."""
        return [Column(row["name"], row["type"]) for row in self._connection.execute(f"PRAGMA table_info({table})")]

    def key(self, table: str) -> str:
        """The first column of the primary key."""
        found = self._connection.execute(f"PRAGMA table_info({table})")
        return str(next(row["name"] for row in found if row["pk"] == 1))

    def bad_values(self, column: Column) -> Iterator[tuple[str, Any]]:
        """The bad values for a column, by name."""
        if column.type == "INTEGER":
            yield from {"negative": -7, "text": "high", "a blob": b"\x00\x01", "a float": 1.5}.items()
            yield from {"the greatest": 2**63 - 1, "the smallest": -(2**63)}.items()
            return
        yield "a number", 7.25
        for name, text in _TEXTS.items():
            yield name, text if column.type == "TEXT" else text.encode()
        yield "not UTF-8", RawText(b"\xff\xfe\x00a") if column.type == "TEXT" else b'{"a": "\xff\xfe"}'
        yield "another type", b"\x00\xff" if column.type == "TEXT" else "{}"

    def rows(self, table: str, where: str = "true") -> list[Row]:
        """Rows of a table."""
        return [dict(row) for row in self._connection.execute(f"SELECT * FROM {table} WHERE {where}")]

    def insert(self, table: str, row: Row) -> bool:
        """Insert a row; False if the database refuses it."""
        values = ", ".join(_placeholder(value) for value in row.values())
        return self._run(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values})", row.values())

    def update(self, table: str, column: str, value: Any) -> bool:
        """Set a column of all rows; False if the database refuses it."""
        return self._run(f"UPDATE {table} SET {column} = {_placeholder(value)}", [value])

    @contextmanager
    def kept(self, table: str) -> Iterator[bool]:
        """Restores the rows of a table at the end; False if it has none."""
        rows = self.rows(table)
        yield bool(rows)
        if table == "synergon_sequence":  # it has gone on, and each commit writes all of it
            return
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(f"DELETE FROM {table}")
        for row in rows:
            assert self.insert(table, row), row
        self._connection.execute("COMMIT")

    def _run(self, sql: str, values: Any) -> bool:
        try:
            self._connection.execute(sql, [value.content if isinstance(value, RawText) else value for value in values])
        except sqlite3.IntegrityError:
            return False
        return True


def _placeholder(value: Any) -> str:
    return "CAST(? AS TEXT)" if isinstance(value, RawText) else "?"


class PostgresDatabase:
    """The tables of a schema of PostgreSQL."""

    def __init__(self) -> None:
        self._connection = psycopg.connect(server_url(), autocommit=True)
        found = administer("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", SCHEMA)
        self.tables = sorted(name for (name,) in found)

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def columns(self, table: str) -> list[Column]:
        """The columns of a table."""
        return _postgres_columns(table)

    def key(self, table: str) -> str:
        """The first column of the primary key."""
        return self.columns(table)[0].name

    def bad_values(self, column: Column) -> Iterator[tuple[str, Any]]:
        """The bad values for a column, by name."""
        match column.type:
            case "text":
                yield from _TEXTS.items()
            case "_text":
                yield from {"odd texts": "{NULL, a}", "of two dimensions": "{{a, b}, {c, d}}"}.items()
                yield "deeply nested", "{" + '"' + NESTED + '"' + "}"
            case "timestamptz":
                yield from {name: name for name in ("infinity", "-infinity", "294000-01-01", "4000-01-01 BC")}.items()
            case "bool":
                yield "true", True
            case "xid8":
                yield from {"the greatest": str(2**64 - 1), "none": "0"}.items()
            case integer:
                bits = {"int2": 16, "int4": 32, "int8": 64}[integer]
                yield from {
                    "negative": -7,
                    "the greatest": 2 ** (bits - 1) - 1,
                    "the smallest": -(2 ** (bits - 1)),
                }.items()

    def rows(self, table: str, where: str = "true") -> list[Row]:
        """Rows of a table."""
        with self._connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute(SQL(f"SELECT * FROM {SCHEMA}.{table} WHERE {where}")).fetchall()

    def insert(self, table: str, row: Row) -> bool:
        """Insert a row; False if the database refuses it."""
        types = dict(self.columns(table))
        names = SQL(", ").join(map(Identifier, row))
        values = SQL(", ").join(SQL(f"%s::{types[name]}") for name in row)
        return self._run(SQL(f"INSERT INTO {SCHEMA}.{table} ({{}}) VALUES ({{}})").format(names, values), row.values())

    def update(self, table: str, column: str, value: Any) -> bool:
        """Set a column of all rows; False if the database refuses it."""
        return self._run(SQL(f"UPDATE {SCHEMA}.{table} SET {{}} = %s").format(Identifier(column)), [value])

    @contextmanager
    def kept(self, table: str) -> Iterator[bool]:
        """Restores the rows of a table at the end; False if it has none."""
        rows = self.rows(table)
        yield bool(rows)
        with self._connection.transaction():
            self._connection.execute(SQL(f"DELETE FROM {SCHEMA}.{table}"))
            for row in rows:
                assert self.insert(table, row), row

    def _run(self, sql: Any, values: Any) -> bool:
        try:
            self._connection.execute(sql, list(values))
        except (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.FeatureNotSupported):
            return False
        return True


@cache
def _postgres_columns(table: str) -> list[Column]:
    found = administer(
        "SELECT column_name, udt_name FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        SCHEMA,
        table,
    )
    return [Column(*row) for row in found]


_TEXTS: Final = {
    "nonsense": NONSENSE,
    "empty": "",
    "deeply nested": NESTED,
    "a deeply nested field": f'{{"cost": {NESTED}, "new": {NESTED}}}',
    "newer": NEWER,
    "a newer list": f"[{NEWER}]",
    "a long number": MANY_DIGITS,
    "null": "null",
    "with a NUL": "a\0b",
}


class BadRows:
    """Writes cells, and remembers them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys = count(1_000_001)
        self.cells: list[Cell] = []
        self.refused: list[Cell] = []

    def write(self, table: str, sample: Row, names: Container[str] | None = None) -> None:
        """A copy of the sample for each column, or each of these, and each bad value."""
        key = self._database.key(table)
        for column in self._database.columns(table):
            if names is None or column.name in names:
                for badness, value in self._database.bad_values(column):
                    self._write(table, key, column, badness, value, sample)

    def _write(self, table: str, key: str, column: Column, badness: str, value: Any, sample: Row) -> None:
        number = next(self._keys)
        row = sample | {key: number if isinstance(sample[key], int) else f"{sample[key]} {number}"}
        row[column.name] = value
        cell = Cell(table, column.name, badness, row[key])
        (self.cells if self._database.insert(table, row) else self.refused).append(cell)

    def copy(self, table: str, sample: Row) -> int:
        """A good copy of a row; its id."""
        row = sample | {self._database.key(table): next(self._keys)}
        assert self._database.insert(table, row), row
        number: int = row[self._database.key(table)]
        return number
