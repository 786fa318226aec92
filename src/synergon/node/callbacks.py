"""Calls users' functions that are not bodies: hooks, verdicts, idle work.

Promise: nothing of the node waits for them but who called, and none takes the place of a body. A coroutine runs on the
loop; a plain function has a thread of its own, which keeps neither a body from its turn nor the process from its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from synergon.errors import SynergonError


class Callbacks:
    """So many plain functions at once; a place is taken until the function has really ended, even if nobody waits for
    it any more."""

    def __init__(self, threads: int) -> None:
        self._threads = asyncio.Semaphore(threads)

    async def made(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns, or raises; an exit that it wants for the process is an error like any other."""
        if inspect.iscoroutinefunction(function):
            return await _contained(function(*arguments))
        made = await self._in_thread(lambda: function(*arguments))
        # An object or a partial that is called like a function may give a coroutine, too.
        return await _contained(made) if inspect.isawaitable(made) else made

    async def settled(self) -> None:
        """Return when there is a place for another."""
        async with self._threads:
            return

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        await self._threads.acquire()
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any, error: Exception | None) -> None:
            self._threads.release()
            if over.done():
                return
            if error is None:
                over.set_result(value)
            else:
                over.set_exception(error)

        def run() -> None:
            value, error = None, None
            try:
                value = function()
            except BaseException as raised:  # noqa: BLE001  told where it is awaited
                error = _as_error(raised)
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(settle, value, error)

        threading.Thread(target=run, name="synergon-hook", daemon=True).start()
        return await over


async def _contained(made: Awaitable[Any]) -> Any:
    try:
        return await made
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as raised:
        raise _as_error(raised) from raised


def _as_error(raised: BaseException) -> Exception:
    """Something that a future can hold, and that does not end the loop."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    error = SynergonError(f"it raised {type(raised).__name__}: {raised}")
    error.__cause__ = raised
    return error
