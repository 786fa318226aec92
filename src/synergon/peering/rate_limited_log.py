"""RateLimitedLog: logs errors that strangers cause at a port, in a limited number of lines."""

from __future__ import annotations

import logging
import time
from typing import Final

INTERVAL_SECONDS: Final = 60.0

_logger = logging.getLogger("synergon.peering")


class RateLimitedLog:
    """Logs the first error of each kind at once, and after that at most one line of the kind per minute."""

    def __init__(self) -> None:
        self._next_at: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}

    def add(self, kind: str, text: str, level: int = logging.INFO) -> None:
        """Log the text, unless a line of this kind was logged less than a minute ago; then only count it."""
        now = time.monotonic()
        if now < self._next_at.get(kind, now):
            self._unlogged[kind] = self._unlogged.get(kind, 0) + 1
            return
        self._next_at[kind] = now + INTERVAL_SECONDS
        unlogged = self._unlogged.pop(kind, 0)
        _logger.log(level, "%s%s", text, f" (and {unlogged} times before, not logged)" if unlogged else "")
