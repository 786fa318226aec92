"""Notices commits and rollbacks of a caller's own transaction, so that `conn=` works on the memory store of a test.

SQLAlchemy announces the ends of its transactions. sqlite3, asyncpg and psycopg do not.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from synergon.errors import OptionError

SILENT: Final = (
    ("asyncpg", "Connection"),
    ("asyncpg.pool", "PoolConnectionProxy"),
    ("psycopg", "Connection"),
    ("psycopg", "AsyncConnection"),
)
"""Connections that do not announce their commits."""

Store = Callable[[], None]
"""Stores the tasks of one call."""


class CallerTransactions:
    """The tasks of a test that wait for commits of callers."""

    def __init__(self) -> None:
        self._waiting: MutableMapping[Any, SessionWaits | ConnectionWaits] = WeakKeyDictionary()

    def can_wait(self, connection: Any) -> bool:
        """Whether this connection announces its commits. Raises OptionError if `conn=` takes no such object."""
        if _announcing(connection) is not None:
            return True
        if isinstance(connection, sqlite3.Connection) or any(_is_a(connection, *names) for names in SILENT):
            return False
        raise OptionError(
            f"conn must be a connection of sqlite3, asyncpg or psycopg 3, or a connection or session of SQLAlchemy, "
            f"got {type(connection).__module__}.{type(connection).__qualname__}"
        )

    def when_committed(self, connection: Any, store: Store) -> None:
        """Call `store` when the transaction that is open on the connection commits; never, if it is rolled back."""
        target = _announcing(connection)
        waits = self._waiting.get(target)
        if waits is None:
            is_session = _is_a(target, "sqlalchemy.orm", "Session")
            waits = self._waiting[target] = SessionWaits(target) if is_session else ConnectionWaits(target)
        waits.add(store)


class SessionWaits:
    """The tasks that wait for the commit of a session. A task belongs to the innermost savepoint that was open when it
    was enqueued: it is dropped when that savepoint is rolled back."""

    def __init__(self, session: Any) -> None:
        from sqlalchemy import event

        self._session = session
        self._stores: list[tuple[Any, Store]] = []
        event.listen(session, "after_commit", self._note_commit)
        event.listen(session, "after_transaction_end", self._note_end)

    def add(self, store: Store) -> None:
        """Add a task. Begins a transaction if there is none, as a statement would."""
        session = self._session
        self._stores.append((session.get_nested_transaction() or session.get_transaction() or session.begin(), store))

    def _note_commit(self, session: Any) -> None:
        savepoint = session.get_nested_transaction()
        if savepoint is not None:
            self._stores = [(savepoint.parent if of is savepoint else of, store) for of, store in self._stores]
            return
        stores, self._stores = self._stores, []
        for _, store in stores:
            store()

    def _note_end(self, _session: Any, transaction: Any) -> None:
        """Forget the tasks of a transaction that has ended without a commit."""
        self._stores = [(of, store) for of, store in self._stores if of is not transaction]


class ConnectionWaits:
    """The tasks that wait for the commit of a connection of SQLAlchemy. Each is kept with the number of savepoints that
    were open when it was enqueued."""

    def __init__(self, connection: Any) -> None:
        from sqlalchemy import event

        self._stores: list[tuple[int, Store]] = []
        self._depth = 0
        event.listen(connection, "commit", self._note_commit)
        event.listen(connection, "rollback", self._note_rollback)
        event.listen(connection, "savepoint", self._note_savepoint)
        event.listen(connection, "release_savepoint", self._note_release)
        event.listen(connection, "rollback_savepoint", self._note_savepoint_rollback)

    def add(self, store: Store) -> None:
        """Add a task."""
        self._stores.append((self._depth, store))

    def _note_commit(self, _connection: Any) -> None:
        stores, self._stores = self._stores, []
        for _, store in stores:
            store()

    def _note_rollback(self, _connection: Any) -> None:
        self._stores = []

    def _note_savepoint(self, _connection: Any, _name: str) -> None:
        self._depth += 1

    def _note_release(self, _connection: Any, _name: str, _context: Any) -> None:
        self._depth -= 1
        self._stores = [(min(depth, self._depth), store) for depth, store in self._stores]

    def _note_savepoint_rollback(self, _connection: Any, _name: str, _context: Any) -> None:
        self._depth -= 1
        self._stores = [(depth, store) for depth, store in self._stores if depth <= self._depth]


def _announcing(connection: Any) -> Any:
    """The session or connection of SQLAlchemy whose events announce commits. None if there is none."""
    if _is_a(connection, "sqlalchemy.orm", "scoped_session") or _is_a(
        connection, "sqlalchemy.ext.asyncio", "async_scoped_session"
    ):
        connection = connection()  # the session of this thread or task
    if _is_a(connection, "sqlalchemy.ext.asyncio", "AsyncSession"):
        return connection.sync_session
    if _is_a(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return connection.sync_connection
    if _is_a(connection, "sqlalchemy.orm", "Session") or _is_a(connection, "sqlalchemy.engine", "Connection"):
        return connection
    return None


def _is_a(connection: Any, module: str, name: str) -> bool:
    """Whether the object is of this type. Imports no driver: the caller has imported that of its connection."""
    found = getattr(sys.modules.get(module), name, None)
    return found is not None and isinstance(connection, found)
