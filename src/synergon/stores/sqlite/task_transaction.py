"""A transaction for a running task function. Commits the writes of the function, its children and the success of its
task together; or the writes of an `on_final_failure` function and the failure of its task.

SQLite has one writer at a time, so all other writes, including the renewal of the node's lease, wait while the
transaction is open. That is why it is rolled back after `hold_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from synergon.errors import StoreError
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.stores.contention import RolledBack
from synergon.stores.rules.finish import finish, is_committed
from synergon.stores.session import drive
from synergon.stores.sqlite.connection import connect, primary_code, translate
from synergon.stores.sqlite.session import Session
from synergon.stores.sqlite.transaction import IssuedIds, escaped_text

LOCK_WAIT_SECONDS: Final = 10.0

_DISK_ERRORS: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)

INTERRUPT_SECONDS: Final = 0.1
"""How many seconds a rollback waits for a statement of the task function before it interrupts the statement."""

_endings: Final = ThreadPoolExecutor(1, thread_name_prefix="synergon-transaction")
"""The thread that ends transactions. It is not one of the default executor, whose threads may all be waiting for a
transaction to end."""


class SqliteTaskTransaction:
    """Opened by `ctx.transaction()`, and ended when the task function returns."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, hold_seconds: float, on_end: Callable[[], object]
    ) -> None:
        self.connection: Final = connection
        self.blocking_connection: Final = connection
        self._path = path
        self._hold_seconds = hold_seconds
        self._on_end = on_end
        self._is_open = True
        self._was_held_too_long = False
        self._lock = threading.Lock()
        self._limit = threading.Timer(hold_seconds, self._give_up)
        self._limit.daemon = True
        self._limit.start()

    @classmethod
    async def open(cls, path: Path, hold_seconds: float, on_end: Callable[[], None]) -> SqliteTaskTransaction:
        """Begin a transaction. Waits for the write lock on a thread, so that the event loop is not blocked. `on_end`
        may be called more than once."""
        loop = asyncio.get_running_loop()
        notify = partial(loop.call_soon_threadsafe, on_end)
        opening = loop.run_in_executor(None, cls._open, path, hold_seconds, notify)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread goes on and may get the lock, which is then released
            opening.add_done_callback(cls._drop)
            raise

    @staticmethod
    def _drop(opening: asyncio.Future[SqliteTaskTransaction]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            opening.result()._close()  # noqa: SLF001  one of our own

    @classmethod
    def _open(cls, path: Path, hold_seconds: float, on_end: Callable[[], object]) -> SqliteTaskTransaction:
        connection = connect(path, lock_wait_seconds=LOCK_WAIT_SECONDS)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            connection.close()
            raise translate(error, path) from error
        return cls(connection, path, hold_seconds, on_end)

    async def finish(self, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        """Apply outcomes and commit. Roll back if a claim is stale or the tasks are to be cancelled."""
        return await asyncio.get_running_loop().run_in_executor(_endings, self._finish, fenced_outcomes)

    async def rollback(self) -> None:
        """Undo the writes of the task function. Does nothing after `finish` or an earlier rollback."""
        await asyncio.get_running_loop().run_in_executor(_endings, self._close)

    def _finish(self, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        with self._lock:
            try:
                if not self.connection_is_usable():
                    raise StoreError(self._why_unusable())
                self.connection.text_factory = escaped_text
                transaction = Session(self.connection, IssuedIds(self._path))
                verdicts = drive(finish(transaction, fenced_outcomes))
                transaction.flush()
                self.connection.execute("COMMIT" if is_committed(fenced_outcomes, verdicts) else "ROLLBACK")
            except sqlite3.Error as error:
                raise self.explain(error) or translate(error, self._path) from error
            finally:
                self._release()
            return verdicts

    def explain(self, error: BaseException) -> StoreError | None:
        """Implements `TaskTransaction.explain`. After an error of the disk, SQLite has rolled the transaction back."""
        if self._was_held_too_long:
            return StoreError(self._why_unusable())
        if isinstance(error, sqlite3.Error) and primary_code(error) in _DISK_ERRORS:
            return RolledBack(str(translate(error, self._path)))
        return None

    def connection_is_usable(self) -> bool:
        """Whether the connection still has the transaction that was opened for the task function."""
        return self._is_open and not self._was_held_too_long and self._is_in_transaction()

    def _is_in_transaction(self) -> bool:
        try:
            return self.connection.in_transaction
        except sqlite3.ProgrammingError:  # the task function has closed it
            return False

    def _why_unusable(self) -> str:
        if self._was_held_too_long:
            return (
                f"ctx.transaction() was held for more than {self._hold_seconds:g} s, which blocks all other "
                "writers, and was rolled back; do the slow part first, open it last, and enqueue with ctx.enqueue() "
                "(another enqueue waits for this transaction to end)"
            )
        return "the task function committed, rolled back or closed ctx.transaction() itself; leave that to synergon"

    def _give_up(self) -> None:
        self._was_held_too_long = True
        while not self._is_rolled_back():
            time.sleep(INTERRUPT_SECONDS)
        self._on_end()

    def _is_rolled_back(self) -> bool:
        """Roll back, and prevent further writes of the task function. False if the interrupt has also stopped the
        rollback, which must then be repeated."""
        # A running statement blocks the connection, so it is interrupted. Only if the rollback has to wait:
        # while a cursor is half read, an interrupt stops every other statement, the rollback among them.
        interrupt = threading.Timer(INTERRUPT_SECONDS, self._interrupt)
        interrupt.daemon = True
        with self._lock:
            if not (self._is_open and self._is_in_transaction()):
                return True
            interrupt.start()
            try:
                # What the task function writes after the rollback would be committed. It runs on another
                # thread and may write between any two of these lines.
                self.connection.execute("PRAGMA query_only = ON")
                self.connection.execute("ROLLBACK")
                self.connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
            except sqlite3.OperationalError:
                return False
            finally:
                interrupt.cancel()
            return True

    def _interrupt(self) -> None:
        with contextlib.suppress(sqlite3.ProgrammingError):  # closed meanwhile
            self.connection.interrupt()

    def _close(self) -> None:
        with self._lock:
            self._release()

    def _release(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._limit.cancel()
        with contextlib.suppress(sqlite3.Error):  # closing it rolls back, too
            if self._is_in_transaction():
                self.connection.execute("ROLLBACK")
        self.connection.close()
        self._on_end()
