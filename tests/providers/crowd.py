"""Counts how many bodies are inside something at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support import until


class Crowd:
    """How many are inside now, and how many were at the most, by name."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.ever: Counter[str] = Counter()
        self._opened = asyncio.Event()

    @contextmanager
    def inside(self, *names: str) -> Iterator[None]:
        """One more is in each of these."""
        for name in names:
            self.now[name] += 1
            self.ever[name] += 1
            self.most[name] = max(self.most[name], self.now[name])
        try:
            yield
        finally:
            for name in names:
                self.now[name] -= 1

    async def hold(self, *names: str) -> None:
        """Stay in these until `open`."""
        with self.inside(*names):
            await self._opened.wait()

    async def pass_through(self, *names: str, seconds: float = 0.0) -> None:
        """Be in these for a moment."""
        with self.inside(*names):
            await asyncio.sleep(seconds)

    def open(self) -> None:
        """Let all go on that hold."""
        self._opened.set()

    async def until_inside(self, name: str, count: int) -> None:
        """Return when so many are in there."""
        await until(lambda: self.now[name] >= count)
