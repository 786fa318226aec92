"""One transaction: a cursor, a moment, and the ids given in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from synergon.stores.sql import statements

SQL = statements("sqlite")


class Transaction:
    """What a piece of work may use. Time stands still in it, and ids are given in order."""

    __slots__ = ("_changes", "_connection", "_cursor", "_last_id", "_now")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._cursor.row_factory = None  # the caller's connection may have one
        self._changes = connection.total_changes
        self._now: int | None = None
        self._last_id = 0

    @property
    def now(self) -> int:
        """The store's clock, the same throughout the transaction."""
        if self._now is None:
            self._now, self._last_id = self._cursor.execute(SQL["now"]).fetchone()
        return self._now

    def next_id(self) -> int:
        """An id greater than every one given before."""
        if self._now is None:
            _ = self.now
        self._last_id += 1
        return self._last_id

    def flush(self) -> None:
        """Keep the clock and the ids, if anything was written; to be called before the commit."""
        if self._now is not None and self._connection.total_changes != self._changes:
            self._cursor.execute(SQL["advance"], (self._now, self._last_id))

    def rows(self, name: str, *parameters: Any) -> list[Any]:
        """All rows of the named statement."""
        return self._cursor.execute(SQL[name], parameters).fetchall()

    def row(self, name: str, *parameters: Any) -> Any:
        """The first row of the named statement, or None."""
        return self._cursor.execute(SQL[name], parameters).fetchone()

    def run(self, name: str, *parameters: Any) -> int:
        """Run the named statement; how many rows it changed."""
        return self._cursor.execute(SQL[name], parameters).rowcount

    def run_many(self, name: str, parameters: Iterable[tuple[Any, ...]]) -> None:
        """Run the named statement once for each tuple of parameters."""
        self._cursor.executemany(SQL[name], parameters)

    def select(self, sql: str, parameters: Iterable[Any]) -> list[Any]:
        """All rows of a statement that was put together from checked parts."""
        return self._cursor.execute(sql, tuple(parameters)).fetchall()
