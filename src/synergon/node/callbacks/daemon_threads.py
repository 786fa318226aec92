"""Daemon threads for callbacks. A callback that hangs blocks neither task functions nor the exit of the process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any


async def run_in_daemon_thread(function: Callable[[], Any], name: str, on_end: Callable[[], None]) -> Any:
    """Run `function` on a new thread, in a copy of the caller's context, and return its value. `on_end` is called on
    the event loop when the thread has really ended, even if the caller no longer waits."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def resolve(value: Any, error: Exception | None) -> None:
        on_end()
        if ended.done():
            return
        if error is None:
            ended.set_result(value)
        else:
            ended.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = context.run(function)
        except BaseException as raised:  # noqa: BLE001  raised again where it is awaited
            error = as_exception(raised)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(resolve, value, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await ended


def as_exception(raised: BaseException) -> Exception:
    """The error itself; for SystemExit and similar exceptions, which would end the event loop, a RuntimeError with this
    cause."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    wrapper = RuntimeError(f"it raised {raised!r}")
    wrapper.__cause__ = raised
    return wrapper
