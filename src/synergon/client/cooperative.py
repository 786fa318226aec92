"""Splits long work into chunks, so that the event loop runs other asyncio tasks in between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

CHUNK: Final = 500
"""How many items are processed per iteration of the event loop: a few milliseconds."""


async def made_in_chunks(make: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """Apply `make` to each item, in chunks between which the event loop runs other asyncio tasks."""
    made: list[Made] = []
    for start in range(0, len(items), CHUNK):
        if start:
            await asyncio.sleep(0)
        made += map(make, items[start : start + CHUNK])
    return made


class FairWaiters:
    """Lets waiting callers continue in chunks, in the order of their calls."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait until this caller may continue. All other asyncio tasks have then run once."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._next, loop)
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(CHUNK, len(self._waiting))):
            waiter = self._waiting.popleft()
            if not waiter.done():  # the caller may have been cancelled
                waiter.set_result(None)
        if self._waiting:
            loop.call_soon(self._next, loop)
