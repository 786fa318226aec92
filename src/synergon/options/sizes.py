"""Amounts of memory: bytes, or texts like `"512MB"` and `"2GiB"`."""

from __future__ import annotations

import math
import re
from typing import Final

from synergon.errors import OptionError

Size = int | str

_UNITS: Final = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_WORD: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def size_bytes(value: Size, option: str) -> int:
    """Convert `value` to bytes. Raises an OptionError that names `option` if it is invalid."""
    if isinstance(value, str):
        match = _WORD.fullmatch(value)
        unit = _UNITS.get((match[2] or "B").upper()) if match else None
        if match is None or unit is None:
            raise OptionError(f'{option} must be bytes or a size like "512MB" or "2GiB", got {value!r}')
        amount = float(match[1]) * unit
        if not math.isfinite(amount):
            raise OptionError(f"{option} must be a realistic size, got {value!r}")
        if 0 < amount < 1:
            raise OptionError(f"{option} must be 0 or at least a byte, got {value!r}")
        return int(amount)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise OptionError(f'{option} must be bytes or a size like "512MB" or "2GiB", got {value!r}')
    return value
