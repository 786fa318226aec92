"""What was heard of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tests.support import PATIENCE_SECONDS

from synergon import Event


async def take(events: AsyncIterator[Event], number: int) -> list[Event]:
    """The next so many."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [await anext(events) for _ in range(number)]


def names(events: list[Event], task_id: int | None = None) -> list[str]:
    """What the events tell, of one task or of all."""
    return [event.name for event in events if task_id in (None, event.task_id)]
