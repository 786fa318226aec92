"""One transaction: a cursor, a moment, and the ids given in it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from synergon.stores.sql import statements
from synergon.this_process import BOOT_ID

SQL = statements("sqlite")

ROWS_PER_STATEMENT: Final = 32
"""Starting a statement costs more than a row of it does."""

_ONE_ROW: Final = f"({', '.join('?' * 15)})"
_INSERT_ONE: Final = f"{SQL['insert']} {_ONE_ROW}"
_INSERT_MANY: Final = f"{SQL['insert']} {', '.join([_ONE_ROW] * ROWS_PER_STATEMENT)}"


class Transaction:
    """What a piece of work may use. Time stands still in it, and ids are given in order.

    New tasks are kept back until something else is asked for or the transaction ends, so that callers who share a
    commit share statements too.
    """

    __slots__ = ("_changes", "_connection", "_cursor", "_last_id", "_new_queues", "_new_tasks", "_now", "_steady")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._cursor.row_factory = None  # the caller's connection may have one
        self._changes = connection.total_changes
        self._now: int | None = None
        self._steady = 0
        self._last_id = 0
        self._new_tasks: list[tuple[Any, ...]] = []
        self._new_queues: set[str] = set()

    @property
    def now(self) -> int:
        """The store's clock, the same throughout the transaction."""
        if self._now is None:
            self._steady = steady_now()
            self._now, self._last_id = self._cursor.execute(SQL["now"], (self._steady, BOOT_ID)).fetchone()
        return self._now

    @property
    def changes(self) -> int:
        """A number that grows with everything that is written."""
        return self._connection.total_changes + len(self._new_tasks)

    def next_id(self) -> int:
        """An id greater than every one given before."""
        if self._now is None:
            _ = self.now
        self._last_id += 1
        return self._last_id

    def add_task(self, row: tuple[Any, ...], queue: str) -> None:
        """Insert a task, at the latest when the transaction ends."""
        self._new_tasks.append(row)
        self._new_queues.add(queue)

    def flush(self) -> None:
        """Write what was kept back, and the clock and the ids if anything was written; called before the commit."""
        self._insert_tasks()
        if self._now is not None and self._connection.total_changes != self._changes:
            self._cursor.execute(SQL["advance"], (self._now, self._last_id, self._steady, BOOT_ID))

    def _insert_tasks(self) -> None:
        tasks, self._new_tasks = self._new_tasks, []
        queues, self._new_queues = self._new_queues, set()
        for queue in queues:
            self._cursor.execute(SQL["add_queue"], (queue,))
        whole = len(tasks) - len(tasks) % ROWS_PER_STATEMENT
        for start in range(0, whole, ROWS_PER_STATEMENT):
            values = list(chain.from_iterable(tasks[start : start + ROWS_PER_STATEMENT]))
            self._cursor.execute(_INSERT_MANY, values)
        self._cursor.executemany(_INSERT_ONE, tasks[whole:])

    def rows(self, name: str, *parameters: Any) -> list[Any]:
        """All rows of the named statement."""
        return self.select(SQL[name], parameters)

    def row(self, name: str, *parameters: Any) -> Any:
        """The first row of the named statement, or None."""
        return self._execute(SQL[name], parameters).fetchone()

    def run(self, name: str, *parameters: Any) -> int:
        """Run the named statement; how many rows it changed."""
        return self._execute(SQL[name], parameters).rowcount

    def select(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        """All rows of a statement that was put together from checked parts."""
        return self._execute(sql, parameters).fetchall()

    def _execute(self, sql: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
        if self._new_tasks:
            self._insert_tasks()
        return self._cursor.execute(sql, parameters)


def steady_now() -> int:
    """Microseconds of the host's clock that never steps, which every process of one boot shares."""
    return time.monotonic_ns() // 1000


def as_json(values: Iterable[Any]) -> str:
    """A list for `json_each`."""
    return msgspec.json.encode(list(values)).decode()
