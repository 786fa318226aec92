"""The next moment at which a duty has something to do: lets the duty sleep until then."""

from __future__ import annotations

import asyncio
from typing import Final

from synergon.model.clock import Clock

LONGEST_SLEEP_SECONDS: Final = 3600.0


class NextMoment:
    """The earliest of the moments that were noted since `begin`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = asyncio.Event()
        self._must_check = False
        self._next_at: float | None = None

    def check_now(self) -> None:
        """Note that there may be something to do now."""
        self._must_check = True
        self._changed.set()

    def due_in(self, seconds: float) -> None:
        """Note that there is something to do after `seconds`: sleep no longer than that."""
        moment = self._clock.monotonic() + seconds
        if self._next_at is None or moment < self._next_at:
            self._next_at = moment
            self._changed.set()

    def begin(self) -> None:
        """Forget the noted moments, because the duty is about to read the store. Moments that are noted from now on
        remain, because the answer of the store may be older than they are."""
        self._must_check = False
        self._next_at = None

    async def wait(self) -> None:
        """Return at the next moment, or after `check_now`."""
        while not self._must_check and self._pause() > 0:
            await self._sleep(self._pause())

    def _pause(self) -> float:
        if self._next_at is None:
            return LONGEST_SLEEP_SECONDS
        return self._next_at - self._clock.monotonic()

    async def _sleep(self, seconds: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
