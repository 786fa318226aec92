"""The watchdog: logs which task function blocks the event loop, and where."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Mapping
from typing import Final

from synergon.model.clock import Clock
from synergon.node.attempts.attempt import Attempt, location_of

PATIENCE_SECONDS: Final = 1.0
"""How many seconds the event loop may be blocked before this is logged."""


class Watchdog:
    """Pings the node's event loop from another thread. If no answer comes, logs which code the loop is running."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        running: Mapping[int, Attempt],
    ) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._clock = clock
        self._logger = logger
        self._running = running
        self._pinged_at: float | None = None
        self._has_logged = False
        self.lag_seconds: float = 0.0
        """How many seconds the event loop took to answer the last ping."""

    @property
    def blocked_seconds(self) -> float:
        """For how many seconds the event loop has not answered. Safe from any thread."""
        pinged_at = self._pinged_at
        return 0.0 if pinged_at is None else self._clock.monotonic() - pinged_at

    async def watch(self, end: asyncio.Event) -> None:
        """Ping the node's event loop and check for its answers, until `end` is set. Runs on another event loop."""
        while not end.is_set():
            self._ping()
            before = self._clock.monotonic()
            await self._clock.sleep(PATIENCE_SECONDS / 2)
            if self._clock.monotonic() - before < PATIENCE_SECONDS:  # otherwise the whole process was suspended
                self._check()

    def _ping(self) -> None:
        if self._pinged_at is None:
            self._pinged_at = self._clock.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop is closed
                self._pinged_at = None

    def _answer(self) -> None:
        self.lag_seconds = self.blocked_seconds
        if self._has_logged:
            self._logger.warning("the event loop is running again, after %.1f s", self.lag_seconds)
        self._pinged_at = None
        self._has_logged = False

    def _check(self) -> None:
        pinged_at = self._pinged_at
        if pinged_at is None or self._has_logged or self._clock.monotonic() - pinged_at < PATIENCE_SECONDS:
            return
        self._has_logged = True
        attempt = self._blocking_attempt()
        what = f"task {attempt.claim.id} ({attempt.claim.kind})" if attempt is not None else "code outside of tasks"
        self._logger.warning(
            "%s has blocked the event loop for more than %.0f s, at %s; make it a plain function to run it in a thread",
            what,
            PATIENCE_SECONDS,
            self._location(),
        )

    def _blocking_attempt(self) -> Attempt | None:
        current = asyncio.current_task(self._loop)
        return next((attempt for attempt in list(self._running.values()) if attempt.asyncio_task is current), None)

    def _location(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001  the documented way to see another thread
        return "an unknown location" if frame is None else location_of(frame)
