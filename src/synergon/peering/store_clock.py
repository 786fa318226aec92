"""The store's clock, read without asking the store each time."""

from __future__ import annotations

from typing import Final

from synergon.model.clock import Clock
from synergon.stores.base import Store

WORTH_SECONDS: Final = 30.0
"""What was measured more lately than this is not measured again because of a message: anybody can send old ones."""


class StoreClock:
    """What the store's clock says now: measured once, and carried on by this process's own steps.

    A host that was asleep falls behind; whoever sees that its times are refused calls `doubt`.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._is_doubted = False
        self._measured_at = 0.0
        self._ahead: int | None = None
        """How many microseconds the store's clock is ahead of this process's steady one."""

    def now(self) -> int:
        """Microseconds since 1970 by the store's clock."""
        assert self._ahead is not None, "measure first"
        return self._steady() + self._ahead

    def doubt(self) -> bool:
        """Measure again when there is an occasion; whether it is worth making one."""
        self._is_doubted = True
        return self._clock.monotonic() - self._measured_at > WORTH_SECONDS

    async def measure(self) -> None:
        """Ask the store, if there is need."""
        if self._ahead is None or self._is_doubted:
            self._ahead = await self._store.now() - self._steady()
            self._is_doubted = False
            self._measured_at = self._clock.monotonic()

    def _steady(self) -> int:
        return int(self._clock.monotonic() * 1_000_000)
