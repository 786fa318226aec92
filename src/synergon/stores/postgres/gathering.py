"""Inserts that arrive together go to the database together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from synergon.errors import StoreError, StoreUnavailable
from synergon.records import Insertion, NewTask

MOST_TASKS: Final = 2000
IN_FLIGHT: Final = 2
"""While one commit is on its way the next is gathered; a second on its way keeps the database busy in between."""

Insert = Callable[[Sequence[NewTask]], Awaitable[list[Insertion]]]
Call = tuple[Sequence[NewTask], asyncio.Future[list[Insertion]]]


class Gathering:
    """Joins the calls of concurrent callers into shared statements. Each awaits its own durability."""

    def __init__(self, insert: Insert) -> None:
        self._insert = insert
        self._waiting: list[Call] = []
        self._flushes: set[asyncio.Task[None]] = set()
        self._has_first = False

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store tasks without keys, beside whoever does so at the same time."""
        if not self._flushes and not self._has_first:
            return await self._insert_first(tasks)
        future: asyncio.Future[list[Insertion]] = asyncio.get_running_loop().create_future()
        self._waiting.append((tasks, future))
        if len(self._flushes) + self._has_first < IN_FLIGHT:
            flush = asyncio.get_running_loop().create_task(self._flush())
            self._flushes.add(flush)
            flush.add_done_callback(self._flushes.discard)
        return await future

    async def _insert_first(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Nobody else is there: it goes at once, and whoever comes now is gathered."""
        self._has_first = True
        try:
            return await self._insert(tasks)
        finally:
            self._has_first = False

    async def finished(self) -> None:
        """Return when nobody's tasks are on their way any more."""
        while self._flushes:
            await asyncio.wait(self._flushes)

    async def _flush(self) -> None:
        while self._waiting:
            calls = self._take()
            try:
                inserted = await self._insert([task for tasks, _ in calls for task in tasks])
            except StoreUnavailable as error:
                _fail(calls, error)
            except StoreError:  # the store refuses something in it: find whose it is, and spare the neighbours
                for call in calls:
                    await self._insert_alone(call)
            except Exception as error:  # noqa: BLE001  each caller gets it
                _fail(calls, error)
            else:
                _answer(calls, inserted)

    async def _insert_alone(self, call: Call) -> None:
        try:
            inserted = await self._insert(call[0])
        except Exception as error:  # noqa: BLE001  the caller gets it
            _fail([call], error)
        else:
            _answer([call], inserted)

    def _take(self) -> list[Call]:
        taken, number = 0, 0
        while taken < len(self._waiting) and (number == 0 or number + len(self._waiting[taken][0]) <= MOST_TASKS):
            number += len(self._waiting[taken][0])
            taken += 1
        calls, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return calls


def _fail(calls: Sequence[Call], error: Exception) -> None:
    for _, future in calls:
        if not future.done():
            future.set_exception(error)


def _answer(calls: Sequence[Call], inserted: Sequence[Insertion]) -> None:
    start = 0
    for tasks, future in calls:
        if not future.done():
            future.set_result(list(inserted[start : start + len(tasks)]))
        start += len(tasks)
