"""Environment variables that look like settings and are none: a misspelt one would be ignored without a word."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from typing import Final

from synergon.options import settings

OTHERS: Final = frozenset({"SYNERGON_APP", "SYNERGON_DEBUG", "SYNERGON_LOG_LEVEL"})
"""Those of the command line itself."""


def strange_variables() -> Iterator[tuple[str, str]]:
    """What is wrong with each, and what to do about it."""
    known = {f"SYNERGON_{name.upper()}" for name in settings.load({}).sources} | OTHERS
    for name in sorted(os.environ):
        if name.startswith("SYNERGON_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
            yield f"the environment variable {name} means nothing to synergon", advice
