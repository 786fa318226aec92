"""Runs a loop of a node that no error ends: errors are logged, and the loop continues after a pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from synergon.errors import LeaseLost, StoreError, StoreUnavailable
from synergon.model.clock import Clock
from synergon.node.store_outage import StoreOutage

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0


class Duty:
    """One background loop of a node."""

    def __init__(
        self,
        name: str,
        step: Callable[[], Awaitable[None]],
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        outage: StoreOutage,
    ) -> None:
        self.name = name
        self._step = step
        self._clock = clock
        self._logger = logger
        self._outage = outage
        self._task: asyncio.Task[None] | None = None
        self._last_error: type[StoreError] | None = None
        """The type of the last error of the store. None after a step without an error."""
        self.succeeded_at: float = 0.0
        """When the last step ended without an error, or the loop started, by the monotonic clock."""
        self.trouble: str | None = None
        """The error of the last step, if the step before it failed, too. Otherwise None."""

    def start(self) -> None:
        """Start the loop."""
        self.succeeded_at = self._clock.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"synergon-{self.name}")

    async def stop(self) -> None:
        """Cancel the loop, and wait until it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._step()
                if failures and self._last_error is StoreUnavailable:
                    self._outage.end()
                elif failures:
                    self._logger.info("%s works again", self.name)
                failures, self._last_error, self.trouble = 0, None, None
                self.succeeded_at = self._clock.monotonic()
            except LeaseLost:
                # The lease thread notices it too and fences the node; until then there is nothing to do here.
                await self._clock.sleep(FIRST_PAUSE_SECONDS)
            except Exception as error:  # noqa: BLE001  whatever it is, the loop goes on
                self._log_error(error)
                failures += 1
                self.trouble = str(error) if failures > 1 else None
                await self._clock.sleep(pause_after(failures))

    def _log_error(self, error: Exception) -> None:
        """Log an error. An error of the store is logged once per outage, without a traceback."""
        if not isinstance(error, StoreError):
            self._logger.error("%s failed and goes on", self.name, exc_info=error)
            return
        before, self._last_error = (
            self._last_error,
            StoreUnavailable if isinstance(error, StoreUnavailable) else StoreError,
        )
        if self._last_error is before:
            return
        if self._last_error is StoreUnavailable:
            self._outage.begin(error)
        else:
            self._logger.error("%s is rejected by the store and tries again: %s", self.name, error)


def pause_after(failures: int) -> float:
    """How many seconds to wait after this number of failures in a row."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE_SECONDS)
