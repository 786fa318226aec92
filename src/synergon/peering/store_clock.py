"""The store's clock, estimated without a call of the store each time."""

from __future__ import annotations

from typing import Final

from synergon.model.clock import Clock
from synergon.stores.base import Store

MIN_AGE_SECONDS: Final = 30.0
"""After a stale message, the clock is measured again only if the last measurement is older than this: any stranger can
replay stale messages."""


class StoreClock:
    """Estimates the store's current time from one measurement and this process's monotonic clock.

    A monotonic clock may stop while the host is suspended. If timestamps are rejected, `mark_doubtful` is called, and
    the next `measure` asks the store again.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._is_doubtful = False
        self._measured_at = 0.0
        self._offset: int | None = None
        """Microseconds by which the store's clock is ahead of this process's monotonic clock."""

    def now(self) -> int:
        """Microseconds since 1970 by the store's clock."""
        assert self._offset is not None, "measure first"
        return self._monotonic() + self._offset

    def mark_doubtful(self) -> bool:
        """Make the next `measure` ask the store. Returns whether the last measurement is old enough to do so now."""
        self._is_doubtful = True
        return self._clock.monotonic() - self._measured_at > MIN_AGE_SECONDS

    async def measure(self) -> None:
        """Ask the store for its time, if this is the first call or the last measurement is doubtful."""
        if self._offset is None or self._is_doubtful:
            self._offset = await self._store.now() - self._monotonic()
            self._is_doubtful = False
            self._measured_at = self._clock.monotonic()

    def _monotonic(self) -> int:
        return int(self._clock.monotonic() * 1_000_000)
