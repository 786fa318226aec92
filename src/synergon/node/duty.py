"""Runs a loop of a node that never ends by an error: errors are logged, and after a pause it continues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from synergon.errors import LeaseLost, StoreError, StoreUnavailable
from synergon.model.clock import Clock

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
    ) -> None:
        self._name = name
        self._step = step
        self._clock = clock
        self._logger = logger
        self._task: asyncio.Task[None] | None = None
        self._last_error: type[StoreError] | None = None
        """The last error of the store, until a step succeeds."""

    def start(self) -> None:
        """Start the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"synergon-{self._name}")

    async def stop(self) -> None:
        """Cancel the loop, wherever it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._step()
                if failures:
                    self._logger.info("%s works again", self._name)
                failures, self._last_error = 0, None
            except LeaseLost:
                # The lease thread notices it too and fences the node; until then there is nothing to do here.
                await self._clock.sleep(FIRST_PAUSE_SECONDS)
            except Exception as error:  # noqa: BLE001  whatever it is, the loop goes on
                self._log_error(error)
                failures += 1
                await self._clock.sleep(pause_after(failures))

    def _log_error(self, error: Exception) -> None:
        """Log an error once per outage, without a traceback if it comes from the store."""
        if not isinstance(error, StoreError):
            self._logger.error("%s failed and goes on", self._name, exc_info=error)
            return
        before, self._last_error = (
            self._last_error,
            StoreUnavailable if isinstance(error, StoreUnavailable) else StoreError,
        )
        if self._last_error is before:
            return
        if self._last_error is StoreUnavailable:
            self._logger.warning("%s waits for the store: %s", self._name, error)
        else:
            self._logger.error("%s is rejected by the store and tries again: %s", self._name, error)


def pause_after(failures: int) -> float:
    """How long to wait after this number of failures in a row."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE_SECONDS)
