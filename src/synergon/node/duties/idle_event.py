"""Knows when nothing runs on a node any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleEvent:
    """Any number may wait for it."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._may_be = asyncio.Event()

    def look(self) -> None:
        """Something has ended."""
        if not self._is_busy():
            self._may_be.set()

    async def comes(self) -> None:
        """Return when nothing runs."""
        while self._is_busy():
            self._may_be.clear()
            await self._may_be.wait()

    async def comes_within(self, seconds: float | None) -> bool:
        """Whether that was so after so long; None: however long it takes."""
        try:
            async with asyncio.timeout(seconds):
                await self.comes()
        except TimeoutError:
            return False
        return True
