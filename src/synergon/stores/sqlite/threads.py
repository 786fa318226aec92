"""The two threads of a SQLite store: one writes, in group commits; one reads concurrently.

The writer answers a call after the commit that contains its work is on disk. Calls that wait at one time share a
commit. If the work of one call fails, only that work is rolled back: the other work of the group runs again without it
and is committed. Every call is answered, and no error ends the thread. Urgent work goes to the front of the queue. No
call waits longer than `CALL_SECONDS` for a lock.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from synergon.errors import NotConnected, StoreUnavailable
from synergon.stores.slow_statements import SlowStatements
from synergon.stores.sqlite.connection import (
    LOCK_WAIT_SECONDS,
    connect,
    is_undecodable,
    primary_code,
    retry_while_locked,
    translate,
)
from synergon.stores.sqlite.session import Session
from synergon.stores.sqlite.transaction import IssuedIds, Transaction, escaped_text
from synergon.stores.unreadable import UnreadableRows

Result = TypeVar("Result")
Work = Callable[[Transaction], Result]

CALL_SECONDS: Final = 30.0
"""How many seconds a call may wait for a lock that another process holds."""

BATCH: Final = 2000
"""The maximum number of calls that share one commit."""


class _Job(Generic[Result]):
    """The work of one call, and the future on the caller's event loop that gets the result."""

    __slots__ = ("asked_at", "error", "future", "loop", "result", "work")

    def __init__(self, work: Work[Result]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Result] = self.loop.create_future()
        self.asked_at = time.monotonic()
        self.result: Result | None = None
        self.error: BaseException | None = None

    def deliver(self) -> None:
        if self.future.done():  # the caller was cancelled; its work is committed nevertheless
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # None is a Result where work returns None


class DatabaseThread:
    """A thread that owns one connection and runs jobs on it in order."""

    def __init__(
        self,
        path: Path,
        name: str,
        unreadable: UnreadableRows,
        slow: SlowStatements | None = None,
        *,
        lock_wait_seconds: float = LOCK_WAIT_SECONDS,
    ) -> None:
        self._path = path
        self._unreadable = unreadable
        self._jobs: deque[_Job[Any]] = deque()
        self._wake = threading.Event()
        self._is_asleep = False
        self._is_closing = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop, name=f"synergon-{name}", daemon=True)
        self._issued = IssuedIds(path)
        self.connection: sqlite3.Connection = connect(path, lock_wait_seconds=lock_wait_seconds, slow=slow)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def do(self, work: Work[Result], *, urgent: bool = False) -> asyncio.Future[Result]:
        """Run `work` on the thread. The future gets the result of `work`, after the commit if the thread writes."""
        if self._is_closing:
            raise NotConnected(f"the store {self._path} is closed")
        if os.getpid() != self._pid:  # after a fork the thread exists only in the parent
            raise NotConnected(f"the store {self._path} was opened before a fork; connect the engine after it")
        job = _Job(work)
        if urgent:
            self._jobs.appendleft(job)
        else:
            self._jobs.append(job)
        if self._is_asleep:  # only the first caller has to wake it
            self._is_asleep = False
            self._wake.set()
        return job.future

    async def close(self) -> None:
        """Finish the queued jobs, then end the thread and close the connection."""
        self._is_closing = True
        self._wake.set()
        if self._thread.is_alive():
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _loop(self) -> None:
        while True:
            if not self._jobs:
                if self._is_closing:
                    break
                self._pause()
                continue
            jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), BATCH))]
            try:
                self._do_all(jobs)
            except Exception as error:  # noqa: BLE001  the callers get it; without this thread all others would hang
                self._fail(jobs, error)
                self._deliver(jobs)
        self.connection.close()

    def _pause(self) -> None:
        # A caller appends first and looks at the flag then; this thread raises the flag first and looks for jobs
        # then. So one of the two always sees the other.
        self._is_asleep = True
        if not self._jobs and not self._is_closing:
            self._wake.wait()
        self._is_asleep = False
        self._wake.clear()

    def _do_all(self, jobs: list[_Job[Any]]) -> None:
        raise NotImplementedError  # the reader and the writer implement it

    def _attempt(self, job: _Job[Any], transaction: Transaction) -> None:
        try:
            job.result = job.work(transaction)
        except Exception as error:
            if self._escapes_text_from_now_on(error):
                transaction.close()
                raise _BadText from error
            self._fail([job], error)

    def _escapes_text_from_now_on(self, error: Exception) -> bool:
        """If a statement failed because a text in its rows is not UTF-8, make the connection escape such texts, and
        return True: the statement can be repeated. Not done before, because it makes reading every text slower."""
        if not is_undecodable(error) or self.connection.text_factory is escaped_text:
            return False
        self.connection.text_factory = escaped_text
        return True

    def _fail(self, jobs: list[_Job[Any]], error: Exception) -> None:
        for job in jobs:
            job.error = translate(error, self._path) if isinstance(error, sqlite3.Error) else error
            if job.error is not error:
                job.error.__cause__ = error

    def _undo(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    @staticmethod
    def _deliver(jobs: list[_Job[Any]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Job[Any]]] = {}
        for job in jobs:
            by_loop.setdefault(job.loop, []).append(job)
        for loop, its_jobs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver_each, its_jobs)
            except RuntimeError:  # the caller's event loop is closed
                continue


class Reader(DatabaseThread):
    """Reads from snapshots, and never waits for the writer."""

    def _do_all(self, jobs: list[_Job[Any]]) -> None:
        for job in jobs:
            try:
                self._read(job)
            except _BadText:
                self._read(job)
        self._deliver(jobs)

    def _read(self, job: _Job[Any]) -> None:
        try:
            self._undo()  # in case the last transaction could not be ended
            self.connection.execute("BEGIN")
            self._attempt(job, Session(self.connection, self._issued, self._unreadable))
            self._undo()
        except sqlite3.Error as error:
            self._fail([job], error)


class Writer(DatabaseThread):
    """Writes in group commits."""

    def __init__(self, path: Path, name: str, unreadable: UnreadableRows, slow: SlowStatements | None = None) -> None:
        super().__init__(path, name, unreadable, slow, lock_wait_seconds=0)  # `_begin` waits for the lock

    def _do_all(self, jobs: list[_Job[Any]]) -> None:
        try:
            self._commit_together(jobs)
        except _BadText:
            self._undo()
            self._one_by_one(jobs)
        except Exception as error:  # noqa: BLE001  SQLite's, or that of a value that cannot be handed to it
            self._undo()
            if len(jobs) == 1 or self._is_transient(error):
                self._fail_or_requeue(jobs, error)
                return
            self._one_by_one(jobs)
        self._deliver(jobs)

    def _commit_together(self, jobs: list[_Job[Any]]) -> None:
        self._begin()
        transaction = Session(self.connection, self._issued, self._unreadable)
        before = transaction.changes
        for job in jobs:
            self._attempt(job, transaction)
            after = transaction.changes
            # Work that failed after it had changed rows would leave a part of its changes in the group's commit;
            # and some errors (a full disk) make SQLite roll the whole transaction back by itself.
            is_spoiled = job.error is not None and (after != before or not self.connection.in_transaction)
            if is_spoiled and len(jobs) > 1:
                raise _GroupFailed
            before = after
        if len(jobs) == 1 and jobs[0].error is not None:
            self._undo()
            return
        transaction.flush()
        self.connection.execute("COMMIT")

    def _begin(self) -> None:
        """Take the write lock of the file. Raises SQLite's error if another process holds it for `LOCK_WAIT_SECONDS`.

        SQLite's own pauses between attempts grow to 100 ms. In that time other busy processes take the lock many times,
        and this one hardly ever gets it. The pauses here start shorter, and grow with the time already waited.
        """
        try:
            self.connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            retry_while_locked(lambda: self.connection.execute("BEGIN IMMEDIATE"), LOCK_WAIT_SECONDS)

    def _one_by_one(self, jobs: list[_Job[Any]]) -> None:
        for job in jobs:
            job.error = None
            try:
                self._commit_together([job])
            except Exception as error:  # noqa: BLE001  the caller gets it
                self._undo()
                self._fail([job], error)

    def _fail_or_requeue(self, jobs: list[_Job[Any]], error: Exception) -> None:
        """Put jobs that failed for lack of a lock back at the front of the queue. Fail jobs that have waited too long.
        After any other error, fail all jobs."""
        is_lock = primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        too_late = time.monotonic() - CALL_SECONDS
        failed = [job for job in jobs if not is_lock or job.asked_at < too_late or self._is_closing]
        self._fail(failed, error)
        requeued = [job for job in jobs if job not in failed]
        for job in requeued:
            job.error = None
        self._jobs.extendleft(reversed(requeued))
        self._deliver(failed)

    def _is_transient(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.Error) and isinstance(translate(error, self._path), StoreUnavailable)


class _BadText(Exception):
    """A text in the rows of a job is not UTF-8; the job can be repeated."""


class _GroupFailed(Exception):
    """A job of a group failed after it had changed rows."""


def _deliver_each(jobs: list[_Job[Any]]) -> None:
    for job in jobs:
        job.deliver()
