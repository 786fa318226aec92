"""Users' functions that are no bodies, on threads of their own: one that hangs keeps neither a body from its turn nor
the process from its end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any


async def run_in_daemon_thread(function: Callable[[], Any], name: str, on_end: Callable[[], None]) -> Any:
    """What `function` returns or raises; it sees the caller's context. `on_end` is called on the loop when the thread
    has really ended, also if nobody waits for it any more."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def settle(value: Any, error: Exception | None) -> None:
        on_end()
        if over.done():
            return
        if error is None:
            over.set_result(value)
        else:
            over.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = context.run(function)
        except BaseException as raised:  # noqa: BLE001  told where it is awaited
            error = tellable(raised)
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await over


def tellable(raised: BaseException) -> Exception:
    """What ends a thread, an exit for instance, must not end the loop that hears of it."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    told = RuntimeError(f"it raised {raised!r}")
    told.__cause__ = raised
    return told
