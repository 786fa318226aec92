"""Slow statements: logs the names and durations of statements that take longer than `?slow=` in the URL of the store.

The values of a statement are not logged: they are arguments of tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from synergon.errors import ConfigurationError, OptionError
from synergon.options.durations import seconds

SHOWN: Final = 60
"""How many characters of a statement without a name are shown."""


def check_slow(text: str | None) -> float | None:
    """The value of the parameter `slow` in seconds. None if it is not given."""
    if text is None:
        return None
    try:
        return seconds(text, "slow", positive=True)
    except OptionError as error:
        raise ConfigurationError(f"{error}; write it as in ?slow=500ms") from None


class SlowStatements:
    """Logs each statement that took `limit_seconds` or longer. Safe to use from several threads."""

    def __init__(self, limit_seconds: float, named: Mapping[str, str]) -> None:
        self.limit_seconds = limit_seconds
        self.logger: logging.Logger | logging.LoggerAdapter[logging.Logger] = logging.getLogger("synergon")
        # A statement is compared up to its first placeholder, which each call replaces.
        self._names = {text.partition("{")[0].rstrip(): name for name, text in named.items()}
        self._name_of = lru_cache(maxsize=1024)(self._find_name)

    def note(self, sql: str, duration_seconds: float) -> None:
        """Log the statement if it was slow."""
        if duration_seconds >= self.limit_seconds:
            self.logger.warning("slow statement: %s took %.3f s", self._name_of(sql), duration_seconds)

    def _find_name(self, sql: str) -> str:
        if (name := self._names.get(sql.rstrip())) is not None:
            return name
        longest = max((text for text in self._names if text and sql.startswith(text)), key=len, default=None)
        return self._names[longest] if longest is not None else " ".join(sql.split())[:SHOWN]
