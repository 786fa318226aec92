"""The pruner: deletes final tasks and operator actions that are older than their retention, in bounded batches."""

from __future__ import annotations

from typing import Final

from synergon.model.clock import Clock
from synergon.policies import Retention, cutoffs_of
from synergon.stores.base import Store

BATCH: Final = 1000
PAUSE_SECONDS: Final = 60.0
AUDIT_SECONDS: Final = 30 * 86400.0
"""How many seconds operator actions are kept in the audit."""


class Pruner:
    """Prunes the history according to the retention of each final state."""

    def __init__(self, store: Store, clock: Clock, retention: Retention) -> None:
        self._store = store
        self._clock = clock
        self._cutoffs = cutoffs_of(retention, audit_seconds=AUDIT_SECONDS)

    async def step(self) -> None:
        """Prune everything that is old enough, then wait for a random time, so that nodes do not prune at the same
        time."""
        while await self._store.prune(self._cutoffs, BATCH) >= BATCH:
            await self._clock.sleep(0.01)
        await self._clock.sleep(PAUSE_SECONDS * (0.5 + self._clock.chance()))
