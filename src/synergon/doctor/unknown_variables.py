"""Finds environment variables that look like settings but are unknown. Without this, a misspelt one would silently have
no effect."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from typing import Final

from synergon.options import settings

CLI_VARIABLES: Final = frozenset(
    {
        "SYNERGON_APP",
        "SYNERGON_DEBUG",
        "SYNERGON_LOG_FORMAT",
        "SYNERGON_LOG_LEVEL",
        "SYNERGON_LOG_TASKS",
        "SYNERGON_WEB_CREDENTIALS",
        "SYNERGON_WEB_TOKENS",
    }
)
"""The variables that the command line reads itself. They are not settings."""


def unknown_variables() -> Iterator[tuple[str, str]]:
    """For each unknown variable, the problem and what to do about it."""
    known = {f"SYNERGON_{name.upper()}" for name in settings.load({}).sources} | CLI_VARIABLES
    for name in sorted(os.environ):
        if name.startswith("SYNERGON_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            yield f"the environment variable {name} is not a setting of synergon", advice
