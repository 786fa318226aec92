"""How often a node looks for what nobody told it about."""

from __future__ import annotations

import asyncio
from typing import Final

from synergon.model.clock import Clock

SHORTEST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0
GROWTH: Final = 3.0
WATCH_SECONDS: Final = 60.0
"""How long a node looks often because somebody's own transaction is about to bring tasks."""


class SweepInterval:
    """Every second while there is work or hints may not arrive, and ever more rarely otherwise.

    A pace that the user has given is kept, whatever happens.
    """

    def __init__(self, given_seconds: float | None, clock: Clock) -> None:
        self._given = given_seconds
        self._clock = clock
        self._seconds = SHORTEST_SECONDS
        self._watch_until = 0.0
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Return when it is time to look, or when somebody says so."""
        try:
            async with asyncio.timeout(self._given or self._seconds):
                await self._event.wait()
        except TimeoutError:
            return
        finally:  # not before: what is said during a look is a reason for another one
            self._event.clear()

    def adapt(self, *, is_restless: bool) -> None:
        """After a look: look again soon, or later than the last time."""
        if is_restless or self._clock.monotonic() < self._watch_until:
            self._seconds = SHORTEST_SECONDS
        else:
            self._seconds = min(self._seconds * GROWTH, LONGEST_SECONDS)

    def look_now(self) -> None:
        """There is a reason to look."""
        self._event.set()

    def watch(self) -> None:
        """Tasks may come that nobody will tell of."""
        self._watch_until = self._clock.monotonic() + WATCH_SECONDS
        if self._seconds > SHORTEST_SECONDS:
            self._seconds = SHORTEST_SECONDS
            self._event.set()
