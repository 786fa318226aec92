"""A transaction for a running task function. Commits the writes of the function, its children and the success of its
task together; or the writes of an `on_final_failure` function and the failure of its task.

The connection is from a separate pool, so that open transactions of task functions do not block claims and outcomes.
The transaction is rolled back after `hold_seconds`, so that no lock outlives the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction

from synergon.errors import StoreError, StoreUnavailable
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.stores.contention import RolledBack
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.connection import ISOLATION, SEARCH_PATH, Connections
from synergon.stores.postgres.errors import translated
from synergon.stores.postgres.session import Session
from synergon.stores.rules.finish import finish, is_committed

Value = TypeVar("Value")


class PostgresTaskTransaction:
    """Opened by `ctx.transaction()`, and ended when the task function returns."""

    def __init__(
        self,
        connection: PoolConnectionProxy[Any],
        connections: Connections,
        address: Address,
        sql: Mapping[str, str],
        shard: int,
        hold_seconds: float,
    ) -> None:
        self.connection = connection
        self.blocking_connection: Final = BlockingConnection(connection)
        self._connections = connections
        self._address = address
        self._sql = sql
        self._shard = shard
        self._hold_seconds = hold_seconds
        self._transaction: Transaction = connection.transaction(isolation=ISOLATION)
        self._began_at: datetime | None = None
        self.is_read_only: bool = False
        self._is_open = True
        self._was_committed = False
        self._was_held_too_long = False
        self._limit = asyncio.get_running_loop().call_later(hold_seconds, self._give_up)

    @classmethod
    async def open(
        cls, connections: Connections, address: Address, sql: Mapping[str, str], shard: int, hold_seconds: float
    ) -> PostgresTaskTransaction:
        """Begin a transaction on a connection of the pool. If the connection is read-only, replace the pool's
        connections and begin again."""
        begun = await cls._begun(connections, address, sql, shard, hold_seconds)
        if not begun.is_read_only:
            return begun
        await begun.rollback()
        await connections.renew()  # a connection that was made while the database was read-only would remain so
        return await cls._begun(connections, address, sql, shard, hold_seconds)

    @classmethod
    async def _begun(
        cls, connections: Connections, address: Address, sql: Mapping[str, str], shard: int, hold_seconds: float
    ) -> PostgresTaskTransaction:
        begun = cls(await connections.take(), connections, address, sql, shard, hold_seconds)
        try:
            with translated(address):
                await begun._begin()
        except BaseException:
            await begun._release()
            raise
        return begun

    async def _begin(self) -> None:
        await self._transaction.start()
        # If this process dies meanwhile, the server ends the transaction a little later.
        patience = str(int((self._hold_seconds + 1) * 1000))
        row: Any = await self.connection.fetchrow(self._sql["begin_task_transaction"], patience)
        self._began_at, self.is_read_only = row

    async def _now(self) -> datetime:
        """The moment at which the current transaction began. It shows whether the transaction is still the one that was
        opened."""
        now: datetime = await self.connection.fetchval(self._sql["now"])
        return now

    async def finish(self, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        """Apply outcomes and commit. Roll back if a claim is stale or the tasks are to be cancelled."""
        self._limit.cancel()
        try:
            with translated(self._address):
                await self._check_is_ours()
                session = Session(self.connection, self._address.profile, self._sql, self._shard)
                await session.rows("fix_path", SEARCH_PATH)
                verdicts = await finish(session, fenced_outcomes)
                if is_committed(fenced_outcomes, verdicts):
                    await session.flush()
                    await self._transaction.commit()
                    self._was_committed = True
                return verdicts
        except StoreUnavailable as error:
            if error.__cause__ is not None and _could_not_write(error.__cause__):
                raise RolledBack(str(error)) from error.__cause__
            raise
        finally:
            await self._release()

    async def rollback(self) -> None:
        """Undo the writes of the task function. Does nothing after `finish` or an earlier rollback."""
        await self._release()

    def explain(self, error: BaseException) -> StoreError | None:
        """Implements `TaskTransaction.explain`. If a statement fails, the server rolls the transaction back."""
        if self._was_held_too_long:
            return self._held_too_long()
        return RolledBack(f"{self._address.location} could not write: {error}") if _could_not_write(error) else None

    def _held_too_long(self) -> StoreError:
        return StoreError(
            f"ctx.transaction() was held for more than {self._hold_seconds:g} s and was rolled back, because its "
            "locks would outlive the lease; do the slow part first and open it last"
        )

    async def _check_is_ours(self) -> None:
        if self._was_held_too_long:
            raise self._held_too_long()
        try:
            is_ours = await self._is_ours()
        except asyncpg.InFailedSQLTransactionError as error:
            raise StoreError(
                "a statement in ctx.transaction() failed and the task function went on, so nothing of it can be "
                "committed; let the error out, or wrap the statement in `async with connection.transaction():`"
            ) from error
        if not is_ours:
            raise StoreError(
                "the task function committed, rolled back or closed ctx.transaction() itself; leave that to synergon"
            )

    async def _is_ours(self) -> bool:
        return self._is_open and self._is_in_transaction() and await self._now() == self._began_at

    def _is_in_transaction(self) -> bool:
        try:
            return self.connection.is_in_transaction()
        except asyncpg.InterfaceError:  # the connection was closed
            return False

    def _give_up(self) -> None:
        self._was_held_too_long = True
        self._disconnect()  # the server rolls back, and the task function cannot write any more

    def _disconnect(self) -> None:
        with suppress(asyncpg.InterfaceError):  # already closed
            self.connection.terminate()

    async def _release(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._limit.cancel()
        try:
            if self._is_in_transaction():
                await self._transaction.rollback()
            elif not self._was_committed:
                self._disconnect()  # no other call may use it: the task function may have changed its state
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            self._disconnect()
        with suppress(StoreUnavailable):  # the connection was lost, and the pool knows
            await self._connections.give_back(self.connection)


def _could_not_write(error: BaseException) -> bool:
    """Whether the server lacks space, memory or connections for now. An exceeded limit of the server's configuration is
    not temporary, so it does not count."""
    return isinstance(error, asyncpg.InsufficientResourcesError) and not isinstance(
        error, asyncpg.ConfigurationLimitExceededError
    )


class BlockingConnection:
    """The connection for a task function in a thread. Has the methods of asyncpg, without `await`."""

    def __init__(self, connection: PoolConnectionProxy[Any]) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()

    def _wait(self, call: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def execute(self, query: str, *arguments: Any) -> str:
        """Run a statement. Returns the server's status text."""
        return self._wait(self._connection.execute(query, *arguments))

    def executemany(self, query: str, arguments: Any) -> None:
        """Run a statement once for each set of arguments."""
        self._wait(self._connection.executemany(query, arguments))

    def fetch(self, query: str, *arguments: Any) -> list[Any]:
        """All rows of a statement."""
        return self._wait(self._connection.fetch(query, *arguments))

    def fetchrow(self, query: str, *arguments: Any) -> Any:
        """The first row of a statement, or None."""
        return self._wait(self._connection.fetchrow(query, *arguments))

    def fetchval(self, query: str, *arguments: Any) -> Any:
        """The first value of the first row of a statement, or None."""
        return self._wait(self._connection.fetchval(query, *arguments))
