"""Batches inserts: calls that arrive while a statement is under way share the next statement.

A call returns its insertions after their commit, or raises. Its tasks are stored at most once. Cancelling one call does
not affect another. A call that is cancelled before its statement starts stores nothing. A call that is cancelled later
ends after its statement, so that its caller can announce tasks that may be stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Final

from synergon.errors import NotConnected, StoreError, StoreUnavailable
from synergon.model.tasks import Insertion, NewTask

MOST_TASKS: Final = 2000
"""The maximum number of tasks in one statement, unless a single call has more."""

Insert = Callable[[Sequence[NewTask]], Awaitable[list[Insertion]]]


class _Call:
    """The tasks of one caller, and the future that it awaits."""

    __slots__ = ("future", "is_under_way", "tasks")

    def __init__(self, tasks: Sequence[NewTask]) -> None:
        self.tasks = tasks
        self.is_under_way = False
        self.future: asyncio.Future[list[Insertion]] = asyncio.get_running_loop().create_future()

    def answer(self, inserted: list[Insertion]) -> None:
        self.is_under_way = False
        if not self.future.done():
            self.future.set_result(inserted)

    def fail(self, error: Exception) -> None:
        self.is_under_way = False
        if not self.future.done():
            self.future.set_exception(error)

    async def wait_for_statement(self, timeout_seconds: float) -> None:
        """Return when the statement of a cancelled call has ended, or after `timeout_seconds`."""
        self.future = asyncio.get_running_loop().create_future()
        # The caller gets its cancellation instead: an error that nothing retrieves would be logged.
        self.future.add_done_callback(asyncio.Future.exception)
        await asyncio.wait([self.future], timeout=timeout_seconds)


class InsertBatcher:
    """Runs one flusher task while calls wait. The flusher belongs to no caller. One statement is under way at a
    time."""

    def __init__(self, insert: Insert, *, cancel_seconds: float) -> None:
        self._insert = insert
        self._cancel_seconds = cancel_seconds
        """How long a cancelled call waits for the end of its statement."""
        self._waiting: deque[_Call] = deque()
        self._under_way: list[_Call] = []
        self._flusher: asyncio.Task[None] | None = None
        self._is_closed = False

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Insert tasks without keys. Returns when they are committed."""
        if self._is_closed:
            raise NotConnected("the store is closed; connect the engine first")
        call = _Call(tasks)
        self._waiting.append(call)
        self._start_flusher()
        try:
            return await call.future
        except asyncio.CancelledError:
            if call.is_under_way:
                await call.wait_for_statement(self._cancel_seconds)
            raise

    def reopen(self) -> None:
        """Accept calls again after `close`."""
        self._is_closed = False

    async def close(self, patience_seconds: float) -> None:
        """Reject new calls, and finish those that wait. Calls that have not ended after `patience_seconds` fail."""
        self._is_closed = True
        if self._flusher is not None and not self._flusher.done():
            _, late = await asyncio.wait([self._flusher], timeout=patience_seconds)
            if late:
                self._flusher.cancel()
                await asyncio.wait([self._flusher])

    def _start_flusher(self) -> None:
        """Start a flusher unless one runs. A running flusher takes every waiting call: it does not suspend between
        finding `_waiting` empty and its end, so no call can arrive in between."""
        if self._flusher is None or self._flusher.done():
            # In a context of its own, because the flusher serves other callers than the one that starts it.
            self._flusher = asyncio.get_running_loop().create_task(self._flush(), context=Context())
            self._flusher.add_done_callback(self._fail_waiting)

    async def _flush(self) -> None:
        try:
            while self._take():
                await self._insert_together()
        except BaseException:  # `close` has cancelled this flusher, or the end of the event loop
            _fail(self._under_way, StoreUnavailable("the store was closed during an insert; the tasks may be stored"))
            raise

    def _take(self) -> bool:
        """Move as many calls as fit into one statement from `_waiting` to `_under_way`. Returns whether there are
        any."""
        self._under_way, tasks = [], 0
        while self._waiting and (not self._under_way or tasks + len(self._waiting[0].tasks) <= MOST_TASKS):
            call = self._waiting.popleft()
            if not call.future.done():  # else it was cancelled
                call.is_under_way = True
                self._under_way.append(call)
                tasks += len(call.tasks)
        return bool(self._under_way)

    async def _insert_together(self) -> None:
        calls = self._under_way
        try:
            inserted = await self._insert([task for call in calls for task in call.tasks])
        except StoreError as error:
            if len(calls) == 1 or isinstance(error, StoreUnavailable):
                _fail(calls, error)
            else:  # the store rejects a value: insert the calls one by one to find it
                await self._insert_one_by_one()
        except Exception as error:  # noqa: BLE001  each caller gets it
            _fail(calls, error)
        else:
            start = 0
            for call in calls:
                call.answer(inserted[start : start + len(call.tasks)])
                start += len(call.tasks)

    async def _insert_one_by_one(self) -> None:
        for number, call in enumerate(self._under_way):
            try:
                call.answer(await self._insert(call.tasks))
            except StoreUnavailable as error:  # the other calls would fail one after the other
                _fail(self._under_way[number:], error)
                return
            except Exception as error:  # noqa: BLE001  the caller gets it
                call.fail(error)

    def _fail_waiting(self, flusher: asyncio.Task[None]) -> None:
        """Fail the waiting calls when the flusher has ended, unless another flusher was started since."""
        if self._flusher is flusher:
            _fail(self._waiting, StoreUnavailable("the store was closed before an insert; the tasks are not stored"))
            self._waiting.clear()


def _fail(calls: Sequence[_Call] | deque[_Call], error: Exception) -> None:
    for call in calls:
        call.fail(error)
