"""A connection to SQLite that measures its statements, for stores with `?slow=` in their URL."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any, TypeVar

from synergon.stores.slow_statements import SlowStatements

Result = TypeVar("Result")


class TimedCursor(sqlite3.Cursor):
    """Measures each statement, from its start to its last row."""

    _sql = ""
    _spent = 0.0

    def execute(self, sql: str, parameters: Any = (), /) -> TimedCursor:
        """Run a statement up to its first row."""
        self._sql, self._spent = sql, 0.0
        self._measure(super().execute, sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Any, /) -> TimedCursor:
        """Run a statement for each set of parameters."""
        self._sql, self._spent = sql, 0.0
        self._measure(super().executemany, sql, parameters)
        return self

    def fetchall(self) -> list[Any]:
        """Read the remaining rows."""
        return self._measure(super().fetchall)

    def _measure(self, call: Callable[..., Result], *arguments: Any) -> Result:
        start, was_slow = time.monotonic(), self._spent >= self._slow.limit_seconds
        try:
            return call(*arguments)
        finally:
            self._spent += time.monotonic() - start
            if not was_slow:  # else it has been logged
                self._slow.note(self._sql, self._spent)

    @property
    def _slow(self) -> SlowStatements:
        connection = self.connection
        assert isinstance(connection, TimedConnection)
        assert connection.slow is not None
        return connection.slow


class TimedConnection(sqlite3.Connection):
    """A connection whose cursors measure their statements."""

    slow: SlowStatements | None = None
    """Receives the durations. None if statements are not measured."""

    def cursor(self, factory: Any = TimedCursor) -> Any:
        """A cursor. It measures its statements if `slow` is set."""
        return super().cursor(factory if self.slow is not None else sqlite3.Cursor)
