"""Durations: seconds, timedeltas, or texts like `"500ms"`."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from synergon.errors import OptionError

Duration = float | int | str | timedelta

LONGEST_SECONDS: Final = 100 * 366 * 86400.0
"""A century. It is longer than any reasonable delay, and every store can add it to a date."""

_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WORD: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|m|h|d)?\s*")


def seconds(value: Duration, option: str, *, positive: bool = False) -> float:
    """Convert `value` to seconds. Raises an OptionError that names `option` if it is invalid."""
    found = _parse(value, option)
    if math.isnan(found) or found < 0 or (positive and found == 0):
        wanted = "longer than zero" if positive else "not negative"
        raise OptionError(f"{option} must be {wanted}, got {value!r}")
    if found > LONGEST_SECONDS:
        raise OptionError(f"{option} must be at most 100 years, got {value!r}")
    return found


def microseconds(duration_seconds: float) -> int:
    """Convert seconds to whole microseconds, the unit of every store."""
    return round(duration_seconds * 1_000_000)


def _parse(value: Duration, option: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        match = _WORD.fullmatch(value)
        if match is None:
            raise OptionError(f'{option} must be seconds or a duration like "500ms" or "10m", got {value!r}')
        return float(match[1]) * _UNITS[match[2] or "s"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"{option} must be a number of seconds, a timedelta or a duration, got {value!r}")
    try:
        return float(value)
    except OverflowError:  # an int may be larger than any float
        return math.inf if value > 0 else -math.inf


def rough(duration_seconds: float) -> str:
    """A duration as text, rounded: `42 s`, `5 min`, `3 h`, `2 d`."""
    whole = round(duration_seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= 2 * length:  # "90 s" says more than "1 min"
            return f"{whole // length} {unit}"
    return f"{whole} s"
