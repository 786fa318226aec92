"""Adapters for the caller's own connection. They give asyncpg, psycopg and SQLAlchemy one interface with the few calls
that the store needs.

Drivers differ in their calls and their style of parameters. A synchronous connection answers at once, an asynchronous
one is awaited; the store uses one coroutine for both. Errors of the driver are not translated, because the connection
is the caller's.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from inspect import isawaitable
from typing import Any, Final

from synergon.errors import OptionError

_PLACEHOLDER: Final = re.compile(r"\$(\d+)")

PSYCOPG_IDLE: Final = 0
PSYCOPG_IN_ERROR: Final = 3


def in_style(style: str, sql: str, parameters: Sequence[Any]) -> tuple[str, Any]:
    """Convert a statement with the placeholders $1, $2, …, and its parameters, to a driver's DB-API `paramstyle`."""
    match style:
        case "numeric_dollar":
            return sql, tuple(parameters)
        case "pyformat":
            named = {f"p{number}": value for number, value in enumerate(parameters, 1)}
            return _PLACEHOLDER.sub(r"%(p\1)s", sql.replace("%", "%%")), named
        case "format":
            order = [int(number) - 1 for number in _PLACEHOLDER.findall(sql)]
            return _PLACEHOLDER.sub("%s", sql.replace("%", "%%")), tuple(parameters[number] for number in order)
        case _:
            raise OptionError(f"conn: a driver with the paramstyle {style!r} is not supported; use asyncpg or psycopg")


async def awaited(value: Any) -> Any:
    """The value; if it is awaitable, the result of awaiting it."""
    return await value if isawaitable(value) else value


class Driver(ABC):
    """The interface that a `Session` needs of a connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    @abstractmethod
    def waits(self) -> bool:
        """Whether the connection is asynchronous: its calls are awaited on a running event loop."""

    @abstractmethod
    async def check_transaction(self) -> None:
        """Raise OptionError if no transaction is open. Without one, writes would be committed at once, or never."""

    @abstractmethod
    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        """All rows of a statement. Empty if the statement returns none."""

    async def fetchrow(self, sql: str, *parameters: Any) -> Any:
        """The first row of a statement, or None."""
        rows = await self.fetch(sql, *parameters)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *parameters: Any) -> Any:
        """The first value of the first row of a statement, or None."""
        row = await self.fetchrow(sql, *parameters)
        return row[0] if row is not None else None


class Asyncpg(Driver):
    """A connection of asyncpg, or the proxy that its pool gives out."""

    waits = True

    async def check_transaction(self) -> None:
        """Raise OptionError if no transaction is open."""
        if not self._connection.is_in_transaction():
            raise no_transaction("async with conn.transaction(): ...")

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        """All rows of a statement."""
        rows: list[Any] = await self._connection.fetch(sql, *parameters)
        return rows


class Psycopg(Driver):
    """A Connection or an AsyncConnection of psycopg 3."""

    @property
    def waits(self) -> bool:
        """Whether the connection is asynchronous."""
        return isinstance(self._connection, sys.modules["psycopg"].AsyncConnection)

    async def check_transaction(self) -> None:
        """Raise OptionError if no transaction is open, or if it has failed already."""
        status = self._connection.info.transaction_status
        if status == PSYCOPG_IN_ERROR:
            raise OptionError("the transaction of conn has failed already; roll it back first")
        if status == PSYCOPG_IDLE and self._connection.autocommit:
            raise no_transaction("with conn.transaction(): ...")

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        """All rows of a statement."""
        text, values = in_style("pyformat", sql, parameters)
        cursor = self._connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row)
        await awaited(cursor.execute(text, values))
        rows: list[Any] = await awaited(cursor.fetchall()) if cursor.description is not None else []
        await awaited(cursor.close())
        return rows


class SqlAlchemy(Driver):
    """A connection or session of SQLAlchemy, synchronous or asynchronous, with any driver for PostgreSQL."""

    def __init__(self, connection: Any, *, is_session: bool, waits: bool) -> None:
        super().__init__(connection)
        self._is_session = is_session
        self._waits = waits

    @property
    def waits(self) -> bool:
        """Whether the connection is asynchronous."""
        return self._waits

    async def check_transaction(self) -> None:
        """Raise OptionError if the database is not PostgreSQL, or if each statement is committed at once."""
        connection = await self._core()
        if connection.dialect.name != "postgresql":
            raise OptionError(f"conn is a connection to {connection.dialect.name}, the engine's store is PostgreSQL")
        proxied = (connection.sync_connection if self._waits else connection).connection
        if getattr(proxied.dbapi_connection, "autocommit", False) is True:
            raise no_transaction("use an isolation level other than AUTOCOMMIT")

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        """All rows of a statement."""
        connection = await self._core()
        text, values = in_style(connection.dialect.paramstyle, sql, parameters)
        result = await awaited(connection.exec_driver_sql(text, values))
        return list(result.all()) if result.returns_rows else []

    async def _core(self) -> Any:
        return await awaited(self._connection.connection()) if self._is_session else self._connection


def driver_of(connection: Any) -> Driver:
    """The adapter for a connection. Imports no driver: it checks only the types of drivers that the caller has
    imported. Raises OptionError if none fits."""
    if _is_one(connection, "asyncpg", "Connection") or _is_one(connection, "asyncpg.pool", "PoolConnectionProxy"):
        return Asyncpg(connection)
    if _is_one(connection, "psycopg", "Connection", "AsyncConnection"):
        return Psycopg(connection)
    if _is_one(connection, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session"):
        return SqlAlchemy(connection, is_session=True, waits=True)
    if _is_one(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return SqlAlchemy(connection, is_session=False, waits=True)
    if _is_one(connection, "sqlalchemy.orm", "Session", "scoped_session"):
        return SqlAlchemy(connection, is_session=True, waits=False)
    if _is_one(connection, "sqlalchemy.engine", "Connection"):
        return SqlAlchemy(connection, is_session=False, waits=False)
    raise OptionError(
        f"conn must be a connection of asyncpg or psycopg 3, or a connection or session of SQLAlchemy, "
        f"got {type(connection).__module__}.{type(connection).__qualname__}"
    )


def _is_one(connection: Any, module: str, *names: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and any(isinstance(connection, getattr(found, name, ())) for name in names)


def no_transaction(how: str) -> OptionError:
    """The error for a connection that has no open transaction. `how` is the code that opens one."""
    return OptionError(f"conn has no transaction open, so nothing would be joined; open one first: {how}")
