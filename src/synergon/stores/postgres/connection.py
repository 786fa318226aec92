"""Connects to PostgreSQL, and shares connections between calls. Every call ends within `call_seconds` and the time of a
rollback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from synergon.errors import NotConnected, StoreUnavailable
from synergon.stores.contention import RolledBack
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.errors import translated
from synergon.stores.slow_statements import SlowStatements

Result = TypeVar("Result")

CONNECT_SECONDS: Final = 10.0

IDLE_TRANSACTION_TIMEOUT: Final = {"idle_in_transaction_session_timeout": "5000"}
"""In milliseconds. If a host dies during a transaction, its locks remain, and reapers wait for them. So the server must
end such a transaction before the tasks of the host are taken over."""

MAX_CACHED: Final = 2
"""How many connections are kept outside the driver's pool between calls, because acquiring and releasing one takes
about as long as a short statement. One is for claims, and one for outcomes or inserts."""

QUEUE_PART: Final = 0.9
"""The part of a call's time that the call may wait for a connection. Less than 1, so that the call can raise an error
with the cause before it times out."""

TURN_SECONDS: Final = 60.0
"""How many seconds a task function waits for a connection. The wait is long, because many task functions may run at
once, and busy connections are no outage."""

ROLLBACK_SHARE: Final = 0.1
"""The part of a call's time that is added for the server to confirm a rollback. If the server does not confirm it, the
connection is cut."""

ISOLATION: Final = "read_committed"
"""The isolation level that synergon's statements need. It is given at each BEGIN, because a database or role may have
another default, and behind a pooler nothing can be set for a connection."""


SEARCH_PATH: Final = "pg_catalog, pg_temp"
"""Where synergon's statements look for functions, operators and types. The path of a role usually has schemas in which
other roles may create functions. Such a function, if it fits the argument types better than the server's own, would run
with synergon's rights."""

FIX_PATH: Final = f"SET LOCAL search_path = {SEARCH_PATH}"
"""Sets `SEARCH_PATH` for one transaction. Used behind a pooler, where nothing can be set for a connection."""


async def connect(address: Address) -> asyncpg.Connection[Any]:
    """Open a single connection outside the pool."""
    settings = None if address.is_pooled_elsewhere else {**IDLE_TRANSACTION_TIMEOUT, "search_path": SEARCH_PATH}
    with translated(address):
        return await address.hosts.connect(server_settings=settings, **_driver_settings(address))


async def disconnect(connection: asyncpg.Connection[Any], address: Address) -> None:
    """Close the connection. If the server does not confirm that in time, cut it: the answers to earlier statements have
    arrived."""
    try:
        await connection.close(timeout=address.call_seconds * ROLLBACK_SHARE)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


def _driver_settings(address: Address) -> dict[str, Any]:
    settings = {"timeout": min(CONNECT_SECONDS, address.call_seconds), "command_timeout": address.call_seconds}
    if address.is_pooled_elsewhere:
        # A transaction-mode pooler gives the server connection to other clients, with prepared statements and settings.
        return {**settings, "statement_cache_size": 0}
    return settings


class Connections:
    """A pool of connections. `close` waits for the calls that are under way."""

    def __init__(
        self, address: Address, *, for_task_functions: bool = False, slow: SlowStatements | None = None
    ) -> None:
        self._address = address
        self._for_strangers = for_task_functions
        """Whether task functions use the connections. They may change settings, so each return to the pool resets
        them."""
        self._slow = slow
        self._turns = asyncio.Semaphore(address.pool)
        """The connections that task functions may take."""
        self._pool: asyncpg.Pool[Any] | None = None
        self._at_hand: list[PoolConnectionProxy[Any]] = []
        self._renewals = 0
        self._queueing = 0
        """The number of calls that wait for a connection."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls = 0
        self._is_idle = asyncio.Event()
        self._was_closed = False

    async def open(self) -> None:
        """Start to accept calls. Connections are made on demand: otherwise the driver would maintain a first
        connection, and log each failed attempt while the database is unavailable."""
        self._loop = asyncio.get_running_loop()
        self._turns = asyncio.Semaphore(self._address.pool)
        with translated(self._address):
            self._pool = await asyncpg.create_pool(
                connect=self._connect,
                min_size=0,
                max_size=self._address.pool,
                reset=self._reset() if self._for_strangers else _leave_as_it_is,
                server_settings=self._server_settings(),
                **_driver_settings(self._address),
            )

    async def _connect(self, *_dsn: object, **settings: Any) -> asyncpg.Connection[Any]:
        """Open a connection for the pool. The pool was created without a URL, so the URL that it passes is ignored:
        `Hosts` chooses the host."""
        connection = await self._address.hosts.connect(**settings)
        if self._slow is not None:
            connection.add_query_logger(self._note_duration)
        return connection

    def _note_duration(self, logged: Any) -> None:
        assert self._slow is not None
        self._slow.note(logged.query, logged.elapsed)

    def _server_settings(self) -> dict[str, str] | None:
        if self._for_strangers or self._address.is_pooled_elsewhere:
            return None
        return {**self._address.profile.settings, **IDLE_TRANSACTION_TIMEOUT, "search_path": SEARCH_PATH}

    def _reset(self) -> Callable[[Any], Awaitable[None]] | None:
        """A function that resets the settings of a connection. None if the driver's own reset suffices."""
        cleaning = self._address.profile.cleaning
        if cleaning is None:
            return None

        async def clean(connection: Any) -> None:
            await connection.execute(cleaning)

        return clean

    async def close(self) -> None:
        """Reject new calls, wait for those under way, then disconnect. Cuts the connections if that takes longer than a
        call may."""
        pool, self._pool, self._was_closed = self._pool, None, True
        if pool is None:
            return
        if self._loop is not None and self._loop.is_closed():
            self._at_hand.clear()  # the connections ended with their loop, and cannot be used any more
            return
        try:
            async with asyncio.timeout(self._address.call_seconds):
                while self._calls:
                    self._is_idle.clear()
                    await self._is_idle.wait()
                await self._release_cached(pool)
                await pool.close()
        except TimeoutError:
            pool.terminate()

    @property
    def is_open(self) -> bool:
        """Whether the pool accepts calls."""
        return self._pool is not None

    @property
    def use_of_pool(self) -> tuple[int, int, int]:
        """How many connections the pool may have, how many calls use one, and how many wait for one."""
        waiting = self._queueing
        return self._address.pool, min(self._calls - waiting, self._address.pool), waiting

    def check_open(self) -> asyncpg.Pool[Any]:
        """The pool. Raises `NotConnected` if it is not open."""
        if self._pool is None:
            state = "closed" if self._was_closed else "not open"
            raise NotConnected(f"the store {self._address.location} is {state}; connect the engine first")
        return self._pool

    @asynccontextmanager
    async def use(self) -> AsyncIterator[PoolConnectionProxy[Any]]:
        """A connection for statements outside a transaction, for at most the duration of a call."""
        pool = self.check_open()
        self._calls += 1
        try:
            with translated(self._address):
                async with asyncio.timeout(self._address.call_seconds):
                    renewals = self._renewals
                    connection = await self._acquire(pool)
                    try:
                        yield connection
                    except BaseException as error:
                        await self._give_up(pool, connection, error)
                        raise
                    await self._cache_or_release(pool, connection, renewals)
        finally:
            self._end_call()

    async def run(self, statement: Callable[[PoolConnectionProxy[Any]], Awaitable[Result]]) -> Result:
        """Run one statement, which is its own transaction. If a connection is kept outside the pool, the statement runs
        on it directly, and the driver enforces the timeout."""
        pool = self.check_open()
        connection = None if self._address.is_pooled_elsewhere else self._pop_cached()
        if connection is None:
            async with self.statement() as connection:
                return await statement(connection)
        self._calls += 1
        renewals = self._renewals
        try:
            with translated(self._address):
                try:
                    result = await statement(connection)
                except BaseException as error:
                    await self._give_up(pool, connection, error)
                    raise
                await self._cache_or_release(pool, connection, renewals)
                return result
        finally:
            self._end_call()

    def _end_call(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._is_idle.set()

    async def _give_up(
        self, pool: asyncpg.Pool[Any], connection: PoolConnectionProxy[Any], error: BaseException
    ) -> None:
        """Return a connection to the pool after an error, and cut it if it cannot be used again."""
        if isinstance(error, asyncpg.InternalClientError):
            connection.terminate()  # the driver has lost track of the protocol, so no other call may use it
        elif isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            connection.terminate()  # it would remain read-only after the primary has moved
            await pool.release(connection)
            await self.renew()
            return
        with suppress(TimeoutError):  # the connection has been cut, and the first error is the one to report
            await pool.release(connection, timeout=self.rollback_seconds)

    @property
    def rollback_seconds(self) -> float:
        """How long a failed call waits for the server to roll back."""
        return self._address.call_seconds * ROLLBACK_SHARE

    async def _cache_or_release(
        self, pool: asyncpg.Pool[Any], connection: PoolConnectionProxy[Any], renewals: int
    ) -> None:
        if self._may_keep(connection, renewals):
            self._at_hand.append(connection)
        else:
            await pool.release(connection)

    async def take(self) -> PoolConnectionProxy[Any]:
        """Take a connection out of the pool until `give_back`, for a task function. Waits until one is free, and raises
        `RolledBack` if none is for `TURN_SECONDS`."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turns.acquire()
        except TimeoutError as error:
            raise RolledBack(
                f"all {self._address.pool} connections of this process for ctx.transaction() to "
                f"{self._address.location} were in use for {TURN_SECONDS:g} s; run fewer such tasks at once "
                f"(max_running=), or allow more with ?pool={self._address.pool * 2}"
            ) from error
        try:
            pool = self.check_open()
            with translated(self._address):
                return await self._acquire(pool)
        except BaseException:
            self._turns.release()
            raise

    async def give_back(self, connection: PoolConnectionProxy[Any]) -> None:
        """Give a connection from `take` back to the pool."""
        try:
            if self._pool is not None:
                with translated(self._address):
                    await self._pool.release(connection)
        finally:
            self._turns.release()

    async def renew(self) -> None:
        """Replace all connections. Called when one has become read-only, because the others may be, too."""
        self._renewals += 1
        if self._pool is not None:
            await self._pool.expire_connections()
            await self._release_cached(self._pool)

    async def _acquire(self, pool: asyncpg.Pool[Any]) -> PoolConnectionProxy[Any]:
        while self._at_hand:
            connection = self._at_hand.pop()
            if not _is_lost(connection):
                return connection
            await pool.release(connection)
        patience = self._address.call_seconds * QUEUE_PART
        self._queueing += 1
        try:
            return await pool.acquire(timeout=patience)
        except TimeoutError as error:
            if pool.get_size() < pool.get_max_size() or pool.get_idle_size():
                raise
            raise StoreUnavailable(
                f"all {self._address.pool} connections of this process to {self._address.location} were in use for "
                f"{patience:g} s; do less at once, or allow more with ?pool={self._address.pool * 2}"
            ) from error
        finally:
            self._queueing -= 1

    def _pop_cached(self) -> PoolConnectionProxy[Any] | None:
        """A connection that is kept outside the pool. None if there is none or it is lost; `_acquire` then returns it
        to the pool."""
        if self._at_hand and not _is_lost(self._at_hand[-1]):
            return self._at_hand.pop()
        return None

    async def _release_cached(self, pool: asyncpg.Pool[Any]) -> None:
        while self._at_hand:
            await pool.release(self._at_hand.pop())

    def _may_keep(self, connection: PoolConnectionProxy[Any], renewals: int) -> bool:
        """Whether the connection is kept outside the pool instead of returned to it. Not while calls wait for a
        connection."""
        has_space = len(self._at_hand) < MAX_CACHED and not self._for_strangers and not self._queueing
        return has_space and self._pool is not None and renewals == self._renewals and not _is_lost(connection)

    @asynccontextmanager
    async def transaction(self, isolation: Any = ISOLATION) -> AsyncIterator[PoolConnectionProxy[Any]]:
        """A connection with a transaction, which is committed at the end, or rolled back after an error."""
        async with self.use() as connection:
            transaction = connection.transaction(isolation=isolation)
            # Called as `async with` would: the driver then does not report a cancelled call as misuse.
            await transaction.__aenter__()
            try:
                if self._address.is_pooled_elsewhere:
                    await connection.execute(FIX_PATH)
                yield connection
            except BaseException as error:
                await self._roll_back(connection, transaction, error)
                raise
            await transaction.__aexit__(None, None, None)

    async def _roll_back(self, connection: PoolConnectionProxy[Any], transaction: Any, error: BaseException) -> None:
        """Roll back. If that fails, cut the connection: the server then rolls back, and no other call gets the open
        transaction. The caller raises the first error."""
        try:
            async with asyncio.timeout(self.rollback_seconds):
                await transaction.__aexit__(type(error), error, error.__traceback__)
        except BaseException as trouble:
            if not _is_lost(connection):
                connection.terminate()
            if isinstance(trouble, asyncio.CancelledError):
                raise

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[PoolConnectionProxy[Any]]:
        """A connection for one statement, which is its own transaction.

        The driver prepares a statement and then runs it. Behind a pooler, only a transaction ensures that both reach
        one server.
        """
        async with self.transaction() if self._address.is_pooled_elsewhere else self.use() as connection:
            yield connection


def _is_lost(connection: PoolConnectionProxy[Any]) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the server has closed it, and the pool has removed it
        return True


async def _leave_as_it_is(_connection: Any) -> None:
    """Reset nothing: synergon's own statements change no settings of a connection."""
