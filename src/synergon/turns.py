"""Long lists, made without keeping the event loop from everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

TURN: Final = 500
"""So many are made before others have their turn: a few milliseconds' worth."""


async def made_in_turns(make: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """What `make` makes of each."""
    made: list[Made] = []
    for start in range(0, len(items), TURN):
        if start:
            await asyncio.sleep(0)
        made += map(make, items[start : start + TURN])
    return made
