"""Much work at once, done without keeping the event loop from everything else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

CHUNK: Final = 500
"""So many are done before others have their turn: a few milliseconds' worth."""


async def made_in_chunks(make: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """What `make` makes of each."""
    made: list[Made] = []
    for start in range(0, len(items), CHUNK):
        if start:
            await asyncio.sleep(0)
        made += map(make, items[start : start + CHUNK])
    return made


class FairTurns:
    """Lets those who come at the same time go on a few at once, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Return when it is one's turn; everybody else on the loop has had one in between."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._next, loop)
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(CHUNK, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # whoever waits may have been cancelled
                turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._next, loop)
