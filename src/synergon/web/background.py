"""Long operations: a request waits for a while, then the operation goes on without it. The audit has its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

Value = TypeVar("Value")

WAIT_SECONDS: Final = 20.0
"""How long a request waits for an operation on many tasks."""

RUNNING: Final[set[asyncio.Task[Any]]] = set()
"""The operations that are under way. The event loop itself has only weak references to them."""


def start(operation: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
    """Start the operation. It goes on if its caller disconnects."""
    running = asyncio.ensure_future(operation)
    RUNNING.add(running)
    running.add_done_callback(_forget)
    return running


async def in_time(operation: Coroutine[Any, Any, Value], seconds: float = WAIT_SECONDS) -> Value | None:
    """The result of the operation. Returns None if it takes longer than `seconds`; the operation then goes on."""
    running = start(operation)
    done, _ = await asyncio.wait([running], timeout=seconds)
    return running.result() if done else None


def _forget(running: asyncio.Task[Any]) -> None:
    RUNNING.discard(running)
    if not running.cancelled():
        running.exception()  # the audit has it
