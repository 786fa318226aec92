"""Connecting, and reading what PostgreSQL and the network say when something is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import asyncpg

from synergon.errors import NotConnected, StoreError, StoreUnavailable
from synergon.stores.postgres.address import Address

CALL_SECONDS: Final = 30.0
"""No call waits longer for an answer."""

CONNECT_SECONDS: Final = 10.0

_PASSING: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InsufficientResourcesError,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    ConnectionError,
    OSError,
    TimeoutError,
)


@contextmanager
def translated() -> Iterator[None]:
    """Our error for the driver's, which tells whether trying again may help."""
    try:
        yield
    except _PASSING as error:
        raise StoreUnavailable(f"PostgreSQL is not available: {str(error) or type(error).__name__}") from error
    except asyncpg.InterfaceError as error:  # the connection or the pool was closed under the call
        raise StoreUnavailable(f"the connection to PostgreSQL was closed: {error}") from error
    except asyncpg.PostgresError as error:
        raise StoreError(f"PostgreSQL refused a statement: {error}") from error


async def connect(address: Address, **settings: Any) -> asyncpg.Connection[Any]:
    """One connection of its own."""
    with translated():
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            address.dsn, timeout=CONNECT_SECONDS, command_timeout=CALL_SECONDS, **_driver_settings(address), **settings
        )
        return connection


def _driver_settings(address: Address) -> dict[str, Any]:
    # A prepared statement stays on a server connection, which a transaction-mode pooler gives to somebody else.
    return {"statement_cache_size": 0} if address.is_pooled_elsewhere else {}


class Connections:
    """The pool of a store."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool: asyncpg.Pool[Any] | None = None
        self._is_closed = False

    async def open(self) -> None:
        """Connect."""
        with translated():
            self._pool = await asyncpg.create_pool(
                self._address.dsn,
                min_size=1,
                max_size=self._address.pool,
                timeout=CONNECT_SECONDS,
                command_timeout=CALL_SECONDS,
                **_driver_settings(self._address),
            )

    async def close(self) -> None:
        """Finish the calls under way, then disconnect."""
        pool, self._pool, self._is_closed = self._pool, None, True
        if pool is None:
            return
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await pool.close()
        except TimeoutError:
            pool.terminate()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy[Any]]:
        """A connection for single statements."""
        if self._pool is None:
            raise NotConnected("the store is closed" if self._is_closed else "the store is not open")
        with translated():
            async with self._pool.acquire(timeout=CALL_SECONDS) as connection:
                yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy[Any]]:
        """A connection with a transaction, committed at the end."""
        async with self.use() as connection:
            with translated():
                async with connection.transaction():
                    yield connection
