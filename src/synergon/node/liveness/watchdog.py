"""Names the body that blocks the event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import Final

from synergon.model.clock import Clock
from synergon.node.attempts.attempt import Attempt

PATIENCE_SECONDS: Final = 1.0
"""How long the loop may be silent before somebody is named."""


class Watchdog:
    """Asks the node's loop for a sign of life from another thread, and looks where it is when none comes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        running: Callable[[], list[Attempt]],
    ) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._clock = clock
        self._logger = logger
        self._running = running
        self._asked_at: float | None = None
        self._has_named = False

    def beside(self, keep: Callable[[asyncio.Event], Awaitable[None]]) -> Callable[[asyncio.Event], Awaitable[None]]:
        """What keeps something, and watches as long as that goes on."""

        async def both(end: asyncio.Event) -> None:
            watching = asyncio.ensure_future(self.watch(end))
            try:
                await keep(end)
            finally:
                watching.cancel()

        return both

    async def watch(self, end: asyncio.Event) -> None:
        """Ask until told to end. Runs on another loop than the one it watches."""
        while not end.is_set():
            self._ask()
            before = self._clock.monotonic()
            await self._clock.sleep(PATIENCE_SECONDS / 2)
            if self._clock.monotonic() - before < PATIENCE_SECONDS:  # or else the whole process stood still
                self._check()

    def _ask(self) -> None:
        if self._asked_at is None:
            self._asked_at = self._clock.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop is closed
                self._asked_at = None

    def _answer(self) -> None:
        if self._has_named and self._asked_at is not None:
            self._logger.warning("the event loop goes on after %.1f s", self._clock.monotonic() - self._asked_at)
        self._asked_at = None
        self._has_named = False

    def _check(self) -> None:
        asked_at = self._asked_at
        if asked_at is None or self._has_named or self._clock.monotonic() - asked_at < PATIENCE_SECONDS:
            return
        self._has_named = True
        attempt = self._culprit()
        who = f"the body of task {attempt.claim.id} ({attempt.claim.kind})" if attempt is not None else "something"
        self._logger.warning(
            "%s has blocked the event loop for more than %.0f s, at %s; make it a plain function to run it in a thread",
            who,
            PATIENCE_SECONDS,
            self._place(),
        )

    def _culprit(self) -> Attempt | None:
        current = asyncio.current_task(self._loop)
        return next((attempt for attempt in self._running() if attempt.asyncio_task is current), None)

    def _place(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001  the documented way to see another thread
        if frame is None:
            return "an unknown place"
        last = traceback.extract_stack(frame)[-1]
        return f"{last.filename}:{last.lineno} in {last.name}"
