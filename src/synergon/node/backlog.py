"""Whether anything is left that a node could run."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from synergon.clock import Clock
from synergon.errors import StoreError
from synergon.lifecycle import LIVE
from synergon.stores.base import Store

LOOK_SECONDS: Final = 0.05
LOOK_SHARE: Final = 0.1
"""How much of its time a node may spend on the question whether anything is left; a backlog is long to count."""


class Backlog:
    """The live tasks of the kinds and queues that a node serves, in queues that are not paused."""

    def __init__(self, store: Store, kinds: Container[str], queues: frozenset[str] | None) -> None:
        self._store = store
        self._kinds = kinds
        self._queues = queues

    async def ends(self, clock: Clock, is_busy: Callable[[], bool], is_over: Callable[[], bool]) -> None:
        """Return when nothing is left and nothing runs, or when it is over anyway."""
        while not is_over():
            asked_at = clock.monotonic()
            if not is_busy() and await self.is_empty():
                return
            await clock.sleep(max(LOOK_SECONDS, (clock.monotonic() - asked_at) / LOOK_SHARE))

    async def is_empty(self) -> bool:
        """False also if the store cannot say."""
        try:
            paused = {queue.name for queue in await self._store.queues() if queue.is_paused}
            counts = await self._store.counts()
        except StoreError:
            return False
        return not any(
            state in LIVE and kind in self._kinds and queue not in paused and self._serves(queue)
            for queue, kind, state in counts
        )

    def _serves(self, queue: str) -> bool:
        return self._queues is None or queue in self._queues
