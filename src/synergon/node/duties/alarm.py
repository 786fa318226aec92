"""The alarm: makes tasks ready when they are due, and ends them when they expire. It sleeps until the next such
moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from synergon.model.clock import Clock
from synergon.node.signals import Signals
from synergon.stores.base import Store

BATCH: Final = 1000
LONGEST_SLEEP_SECONDS: Final = 3600.0


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
        self._clock = clock
        self._logger = logger
        self._signals = signals
        self._rated = rated
        """Kinds with a rate, whose tasks become due one after the other: they are not logged one by one."""
        self._changed = asyncio.Event()
        self._must_check = False
        self._next_at: float | None = None

    def check_now(self) -> None:
        """Check for due tasks now."""
        self._must_check = True
        self._changed.set()

    def due_in(self, seconds: float) -> None:
        """Note that a task will be due after `seconds`: sleep no longer than that."""
        moment = self._clock.monotonic() + seconds
        if self._next_at is None or moment < self._next_at:
            self._next_at = moment
            self._changed.set()

    async def step(self) -> None:
        """Wake due tasks, then sleep until the next moment."""
        await self.wake_due()
        while not self._must_check and self._pause() > 0:
            await self._sleep(self._pause())
        self._signals.moment_passed()

    async def wake_due(self) -> int | None:
        """Make due tasks ready and end expired ones, at most BATCH. Returns the microseconds until the next, if any."""
        self._must_check = False
        self._next_at = None  # calls of `due_in` from here on are kept, because the store's answer may be older
        woken = await self._store.wake(BATCH)
        if woken.next_in is not None:
            self.due_in(woken.next_in / 1_000_000)
        if woken.kinds:
            due = sum(count for kind, count in woken.kinds.items() if kind not in self._rated)
            if due:
                self._logger.info("made %d due tasks ready", due)
            self._signals.ready(woken.kinds)
        if woken.expired:
            self._logger.info("ended %d tasks that had expired", len(woken.expired))
            self._signals.expired(woken.expired)
        return woken.next_in

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
