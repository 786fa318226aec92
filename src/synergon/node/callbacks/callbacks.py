"""Users' functions that are no bodies: lifecycle hooks, idle hooks, subscribers, `can_accept`.

Promise: none of them keeps a node from its stop, or a worker's process from its end. What is under way when the node
stops is cancelled; whatever goes on all the same, coroutine or thread, is named in the log once and left behind.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from synergon.node.callbacks.daemon_threads import run_in_daemon_thread, tellable

Value = TypeVar("Value")

LAST_SECONDS: Final = 1.0
"""How long one may take to end after it was asked to."""


class Callbacks:
    """All that are under way on one node, each by what people know it by."""

    def __init__(self, logger: logging.LoggerAdapter[logging.Logger]) -> None:
        self._logger = logger
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._threads: Counter[str] = Counter()
        self._has_one_ended = asyncio.Event()
        self.was_abandoned = False
        """A coroutine goes on although it was cancelled: the loop cannot be closed, as that waits for it."""

    def begin(self, what: str, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        """Run it as a task of its own, so that whoever waits for it can stop to."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        self._tasks[task] = what
        task.add_done_callback(self._task_ended)
        return task

    async def call(
        self, what: str, function: Callable[[], Any], *, on_thread_end: Callable[[], None] = lambda: None
    ) -> Any:
        """What the function returns or raises. A coroutine function runs on the loop and any other on a thread of its
        own, whose real end is told; what that returns is awaited if it can be."""
        if inspect.iscoroutinefunction(function):
            return await awaited(function())

        def has_ended() -> None:
            self.thread_ended(what)
            on_thread_end()

        self.thread_began(what)
        made = await run_in_daemon_thread(function, what, has_ended)
        # Also from an object or a partial that is called like a function.
        return await awaited(made) if inspect.isawaitable(made) else made

    def limited(self, what: str, seconds: float) -> Limit:
        """What is inside is cancelled after so long, in the current task."""
        return Limit(what, seconds, self._logger)

    def thread_began(self, what: str) -> None:
        """Somebody runs it on a thread."""
        self._threads[what] += 1

    def thread_ended(self, what: str) -> None:
        """That one has ended; to be called on the loop."""
        self._threads[what] -= 1
        if not self._threads[what]:
            del self._threads[what]
        self._has_one_ended.set()

    async def ended(self) -> None:
        """Return when none is under way any more, or when waiting is of no use."""
        for task in self._tasks:
            task.cancel()
        try:
            async with asyncio.timeout(LAST_SECONDS):
                while self._tasks or self._threads:
                    self._has_one_ended.clear()
                    await self._has_one_ended.wait()
        except TimeoutError:
            self._leave_behind()

    def _leave_behind(self) -> None:
        for what in dict.fromkeys([*self._tasks.values(), *self._threads]):
            self._logger.warning("%s would not end; the node stops without it", what)
        self.was_abandoned = bool(self._tasks)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        self._has_one_ended.set()
        if not task.cancelled():
            task.exception()  # so that nobody complains if nobody waits


class Limit:
    """`asyncio.timeout` for callbacks: what will not be cancelled is heard of all the same."""

    __slots__ = ("_before", "_logger", "_seconds", "_task", "_timer", "_what", "is_over")

    def __init__(self, what: str, seconds: float, logger: logging.LoggerAdapter[logging.Logger]) -> None:
        self._what = what
        self._seconds = seconds
        self._logger = logger
        self.is_over = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        # If somebody else has cancelled it as well, that goes on.
        if self.is_over and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _end(self) -> None:
        self.is_over = True
        self._task.cancel()
        self._timer = asyncio.get_running_loop().call_later(LAST_SECONDS, self._complain)

    def _complain(self) -> None:
        self._logger.error("%s goes on although its time of %g s is over", self._what, self._seconds)


async def awaited(made: Awaitable[Value]) -> Value:
    """What it comes to. An exit, or a cancel that nobody asked for, is an error like any other: it must end neither the
    loop nor whoever waits here."""
    try:
        return await made
    except (Exception, GeneratorExit):
        raise
    except asyncio.CancelledError as raised:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        raise tellable(raised) from raised
    except BaseException as raised:
        raise tellable(raised) from raised
