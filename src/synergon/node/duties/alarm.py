"""The alarm: makes tasks ready when they are due, and ends them when they expire. Sleeps until the next such moment."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from synergon.model.clock import Clock
from synergon.node.duties.next_moment import NextMoment
from synergon.node.signals import Signals
from synergon.stores.base import Store

BATCH: Final = 1000


class Alarm:
    """Wakes due tasks on time. Any number of nodes may do this at once, because the store guards each change."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        signals: Signals,
        *,
        rated: Collection[str] = (),
    ) -> None:
        self._store = store
        self._logger = logger
        self._signals = signals
        self._rated = rated
        """Kinds with a rate. Their tasks become due one after the other, and are not logged one by one."""
        self._moment = NextMoment(clock)

    def check_now(self) -> None:
        """Check for due tasks now."""
        self._moment.check_now()

    def due_in(self, seconds: float) -> None:
        """Note that a task will be due after `seconds`: sleep no longer than that."""
        self._moment.due_in(seconds)

    async def step(self) -> None:
        """Wake due tasks, then sleep until the next task is due."""
        await self.wake_due()
        await self._moment.wait()
        self._signals.moment_passed()

    async def wake_due(self) -> int | None:
        """Make due tasks ready and end expired ones, at most BATCH. Returns the microseconds until the next such
        moment. None if there is none."""
        self._moment.begin()
        woken = await self._store.wake(BATCH)
        if woken.next_in is not None:
            self.due_in(woken.next_in / 1_000_000)
        if woken.kinds:
            due = sum(count for kind, count in woken.kinds.items() if kind not in self._rated)
            if due:
                self._logger.debug("made %d due tasks ready", due)
            self._signals.ready(woken.kinds)
        if woken.expired:
            self._logger.info("ended %d tasks that had expired", len(woken.expired))
            self._signals.expired(woken.expired)
        return woken.next_in
