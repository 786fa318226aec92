"""The backlog of a node: checks whether any task is left that the node could run."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import Final

from synergon.errors import NotConnected, StoreError
from synergon.model.clock import Clock
from synergon.model.lifecycle import LIVE, State
from synergon.node.attempts.runner import Runner
from synergon.node.capacity.acceptance import Acceptance
from synergon.node.claims.admission import Admission
from synergon.node.claims.scheduler import Scheduler
from synergon.stores.base import Store

LOOK_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 2.0
"""The pause between two counts of the backlog is LOOK_SECONDS at least, and LONGEST_PAUSE_SECONDS at most."""
LOOK_SHARE: Final = 0.1
"""The share of time that a node may spend on counting its backlog, because counting a long backlog is slow.
LONGEST_PAUSE_SECONDS allows more if the store is slow: otherwise one slow answer would delay the end of the drain
tenfold."""

PAGE: Final = 500
"""How many tasks are read at once to find one that was not rejected."""


class Backlog:
    """The live tasks of the kinds and queues that a node serves, except those in paused queues. Ready tasks do not
    count if the node can never meet their requirements, or has rejected them."""

    def __init__(
        self,
        store: Store,
        kinds: Container[str],
        queues: frozenset[str] | None,
        admission: Admission,
        acceptance: Acceptance,
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._queues = queues
        self._admission = admission
        self._acceptance = acceptance

    async def ends(self, clock: Clock, runner: Runner, scheduler: Scheduler, has_stopped: asyncio.Event) -> None:
        """Wait until no task is left and none runs, or until the node has stopped."""

        def is_busy() -> bool:
            return bool(runner.running) or scheduler.is_claiming

        while not has_stopped.is_set():
            asked_at, before = clock.monotonic(), runner.admitted
            # A task that starts and ends between two checks is seen by neither, so started tasks are counted.
            if not is_busy() and await self.is_empty() and not is_busy() and runner.admitted == before:
                return
            pause = max(LOOK_SECONDS, (clock.monotonic() - asked_at) / LOOK_SHARE)
            await clock.sleep(min(pause, LONGEST_PAUSE_SECONDS))

    async def is_empty(self) -> bool:
        """Whether no task is left. False also if the store is unavailable, or closed because the node stops."""
        try:
            remaining = await self._remaining()
            if remaining and not await self._is_any_for_us(remaining):
                remaining = await self._remaining()  # counted again: another node may have claimed a task meanwhile
                return all(state is State.READY for _, state in remaining)
            return not remaining
        except (StoreError, NotConnected):
            return False

    async def _remaining(self) -> set[tuple[str, State]]:
        paused = {queue.name for queue in await self._store.queues() if queue.is_paused}
        return {
            (kind, state)
            for queue, kind, state in await self._store.counts(is_exact=True)
            if state in LIVE and kind in self._kinds and queue not in paused and self._serves(queue)
        }

    async def _is_any_for_us(self, remaining: set[tuple[str, State]]) -> bool:
        """Whether there is a task that the node could run, ready now or later."""
        if any(state is not State.READY for _, state in remaining):
            return True
        for kind, _ in remaining:
            if await self._is_any_of(kind):
                return True
        return False

    async def _is_any_of(self, kind: str) -> bool:
        after, limit = None, 1
        while page := await self._store.read_candidates(self._admission.candidate_query(kind, after, limit)):
            if not all(self._acceptance.is_rejected(kind, task.id) for task in page):
                return True
            after, limit = (page[-1].priority, page[-1].fair_tag, page[-1].id), PAGE
        return False

    def _serves(self, queue: str) -> bool:
        return self._queues is None or queue in self._queues
