"""StoreOutage: logs once that the store is unavailable, and once that it is back."""

from __future__ import annotations

import logging

from synergon.model.clock import Clock


class StoreOutage:
    """The outage that all parts of a node share. The first part that notices it logs it; the first part that the store
    answers again logs its end."""

    def __init__(self, clock: Clock, logger: logging.LoggerAdapter[logging.Logger]) -> None:
        self._clock = clock
        self._logger = logger
        self._began_at: float | None = None
        self.trouble: str | None = None
        """The error with which the outage began. None while there is no outage."""

    def begin(self, error: Exception) -> None:
        """Note that the store did not answer."""
        if self._began_at is None:
            self._began_at = self._clock.monotonic()
            self.trouble = str(error)
            self._logger.warning("the store is away: %s; the node waits for it", error)

    def end(self) -> None:
        """Note that the store answers again."""
        if self._began_at is not None:
            seconds, self._began_at = self._clock.monotonic() - self._began_at, None
            self.trouble = None
            self._logger.info("the store is back after %.3g s", seconds)
