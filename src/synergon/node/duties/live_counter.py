"""The live counter: counts live tasks at intervals while there are many, so that `counts()` need not."""

from __future__ import annotations

from typing import Final

from synergon.model.clock import Clock
from synergon.options.durations import microseconds
from synergon.stores.base import Store

COUNT_SECONDS: Final = 10.0
"""The age, in seconds, at which a node renews the stored numbers."""
SHARE: Final = 50
"""The pause after a count is at least this many times as long as the count, so that counting takes 2 % of the time."""
IDLE_SECONDS: Final = 120.0
"""How often, in seconds, a node checks whether there are many live tasks."""


class LiveCounter:
    """Counts live tasks for all readers of the database. If there are several nodes, only one counts, because the
    others find fresh numbers."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def step(self) -> None:
        """Count if it is time, then wait for a random time, so that nodes do not count at the same time."""
        began = self._clock.monotonic()
        has_counted = await self._store.recount(microseconds(COUNT_SECONDS))
        seconds = max(COUNT_SECONDS, SHARE * (self._clock.monotonic() - began)) if has_counted else IDLE_SECONDS
        await self._clock.sleep(seconds * (0.5 + self._clock.chance()))
