"""Warns of ready tasks whose kind no live node knows: most often the module that defines it is not imported."""

from __future__ import annotations

import logging
from typing import Final

from synergon.model.clock import Clock
from synergon.model.lifecycle import State
from synergon.stores.base import Store

PAUSE_SECONDS: Final = 60.0
SHOWN: Final = 5
"""The maximum number of kinds that one check logs; the next check logs others."""


class UnknownKinds:
    """Checks about once a minute for ready tasks whose kind no live node knows. A warning about a kind is not repeated
    until a node has known the kind or its ready tasks are gone."""

    def __init__(self, store: Store, clock: Clock, logger: logging.LoggerAdapter[logging.Logger]) -> None:
        self._store = store
        self._clock = clock
        self._logger = logger
        self._warned: set[str] = set()

    async def step(self) -> None:
        """Wait for a random time first, because other workers may be starting, then check."""
        await self._clock.sleep(PAUSE_SECONDS * (0.5 + self._clock.chance()))
        await self.look()

    async def look(self) -> None:
        """Log a warning for each kind that has ready tasks and that no live node knows."""
        ready = await self._store.ready_kinds()
        known = {kind for node in await self._store.nodes() if node.lease_remaining > 0 for kind in node.kinds}
        unknown = ready - known
        self._warned &= unknown
        new = sorted(unknown - self._warned)[:SHOWN]
        if not new:
            return
        counts = await self._store.counts()
        for kind in new:
            self._warned.add(kind)
            number = sum(count for (_, name, state), count in counts.items() if name == kind and state is State.READY)
            self._logger.warning(
                "%d ready %s of kind %r and known to no live worker; import the module that defines it: "
                "Engine(imports=[...]), or --import MODULE",
                max(number, 1),
                "task is" if number <= 1 else "tasks are",
                kind,
                extra={"kind": kind},
            )
