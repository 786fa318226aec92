"""Callbacks: runs user functions that are not task functions: hooks, idle hooks, subscribers, `can_accept`.

No callback can keep a node from stopping or its process from exiting. When the node stops, running callbacks are
cancelled; a coroutine or thread that goes on nevertheless is logged once and abandoned.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from synergon.node.callbacks.daemon_threads import as_exception, run_in_daemon_thread

Value = TypeVar("Value")

STOP_SECONDS: Final = 1.0
"""How many seconds a callback may take to end after it was cancelled."""


class Callbacks:
    """The running callbacks of one node, each with a description for the log."""

    def __init__(self, logger: logging.LoggerAdapter[logging.Logger]) -> None:
        self._logger = logger
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._threads: Counter[str] = Counter()
        self._one_ended = asyncio.Event()
        self.was_abandoned: bool = False
        """Whether a coroutine goes on although it was cancelled. Closing the event loop would wait for it for ever."""

    def start(self, name: str, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        """Run a coroutine in an asyncio task of its own, so that the caller need not wait for it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = name
        task.add_done_callback(self._task_ended)
        return task

    async def call(
        self, name: str, function: Callable[[], Any], *, on_thread_end: Callable[[], None] = lambda: None
    ) -> Any:
        """Call the function and return its value. A coroutine function runs on the event loop, any other function on a
        thread of its own. If that returns an awaitable, it is awaited. `on_thread_end` is called when the thread has
        really ended."""
        if inspect.iscoroutinefunction(function):
            return await awaited(function())

        def has_ended() -> None:
            self.thread_ended(name)
            on_thread_end()

        self.thread_started(name)
        value = await run_in_daemon_thread(function, name, has_ended)
        # A partial, or an object with an async __call__, is not recognised as a coroutine function above.
        return await awaited(value) if inspect.isawaitable(value) else value

    def limited(self, name: str, seconds: float) -> TimeLimit:
        """A context manager that cancels its block in the current asyncio task after `seconds`."""
        return TimeLimit(name, seconds, self._logger)

    def thread_started(self, name: str) -> None:
        """Count a thread that runs a callback."""
        self._threads[name] += 1

    def thread_ended(self, name: str) -> None:
        """Remove a thread from the count. Must be called on the event loop."""
        self._threads[name] -= 1
        if not self._threads[name]:
            del self._threads[name]
        self._one_ended.set()

    async def wait_ended(self) -> None:
        """Cancel all callbacks. Returns when all have ended, or after STOP_SECONDS."""
        for task in self._tasks:
            task.cancel()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                while self._tasks or self._threads:
                    self._one_ended.clear()
                    await self._one_ended.wait()
        except TimeoutError:
            self._abandon()

    def _abandon(self) -> None:
        for name in dict.fromkeys([*self._tasks.values(), *self._threads]):
            self._logger.warning("%s did not end within %g s; the node stops without it", name, STOP_SECONDS)
        self.was_abandoned = bool(self._tasks)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        self._one_ended.set()
        if not task.cancelled():
            task.exception()  # marks it as retrieved: asyncio would log it if no caller awaits the task


class TimeLimit:
    """Like `asyncio.timeout`, but logs a callback that goes on although it was cancelled."""

    __slots__ = ("_before", "_logger", "_name", "_seconds", "_task", "_timer", "is_over")

    def __init__(self, name: str, seconds: float, logger: logging.LoggerAdapter[logging.Logger]) -> None:
        self._name = name
        self._seconds = seconds
        self._logger = logger
        self.is_over: bool = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        # A cancel from elsewhere must still take effect.
        if self.is_over and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _end(self) -> None:
        self.is_over = True
        self._task.cancel()
        self._timer = asyncio.get_running_loop().call_later(STOP_SECONDS, self._log_overrun)

    def _log_overrun(self) -> None:
        self._logger.error("%s ignores its timeout of %g s and goes on", self._name, self._seconds)


async def awaited(value: Awaitable[Value]) -> Value:
    """Await a user's awaitable. SystemExit and similar exceptions, and a CancelledError that the awaitable raises by
    itself, become ordinary errors, so that they end neither the event loop nor the awaiting asyncio task."""
    try:
        return await value
    except (Exception, GeneratorExit):
        raise
    except asyncio.CancelledError as raised:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        raise as_exception(raised) from raised
    except BaseException as raised:
        raise as_exception(raised) from raised
