"""The pruner: deletes final tasks, statistics and operator actions that are older than their retention, and merges old
statistics, in bounded batches."""

from __future__ import annotations

import logging
from typing import Final

from synergon.model.clock import Clock
from synergon.model.tasks import Cutoffs
from synergon.options.durations import microseconds
from synergon.options.settings import Settings
from synergon.policies import cutoffs_of
from synergon.stores.base import Store
from synergon.stores.rules.action_texts import describe_retention

BATCH: Final = 1000
MERGED_AT_ONCE: Final = 10
"""How many minutes or hours of statistics one transaction merges."""
PAUSE_SECONDS: Final = 60.0
AUDIT_SECONDS: Final = 30 * 86400.0
"""How many seconds operator actions are kept in the audit."""


class Pruner:
    """Prunes the history and the statistics according to the retention of the store, which all nodes share."""

    def __init__(
        self, store: Store, clock: Clock, logger: logging.LoggerAdapter[logging.Logger], settings: Settings
    ) -> None:
        self._store = store
        self._clock = clock
        self._logger = logger
        self._name = settings.name
        self._cutoffs = cutoffs_of(settings.retention)
        self._is_default = settings.sources["retention"] == "default"

    async def declare(self) -> None:
        """Store the retention of this node. The default counts only if the store has no retention yet."""
        before = await self._store.declare_retention(self._cutoffs, self._name, is_default=self._is_default)
        if before is not None:
            self._logger.warning(
                "the retention of all workers changes: it was %s%s, and is %s as %s declares",
                describe_retention(before),
                f", as {before.declared_by} declared" if before.declared_by else "",
                describe_retention(self._cutoffs),
                self._name,
            )

    async def step(self) -> None:
        """Prune everything that is old enough, then wait for a random time, so that nodes do not prune at the same
        time."""
        stored = await self._store.retention() or self._cutoffs
        cutoffs = Cutoffs(
            succeeded=stored.succeeded,
            failed=stored.failed,
            cancelled=stored.cancelled,
            statistics=stored.statistics,
            audit=microseconds(AUDIT_SECONDS),
        )
        total = pruned = await self._store.prune(cutoffs, BATCH)
        while pruned >= BATCH:
            await self._clock.sleep(0.01)
            pruned = await self._store.prune(cutoffs, BATCH)
            total += pruned
        while await self._store.compact_statistics(MERGED_AT_ONCE) >= MERGED_AT_ONCE:
            await self._clock.sleep(0.01)
        if total:
            self._logger.info("pruned %d %s", total, "task" if total == 1 else "tasks")
        await self._clock.sleep(PAUSE_SECONDS * (0.5 + self._clock.chance()))
