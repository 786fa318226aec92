"""An event loop on virtual time that can hold one simulated process still, or end it, while the others go on.

Promise: nothing sleeps, and the same program runs in the same order every time. Callbacks run in the order in which
they were asked for; when none is left, time jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import heapq
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

Value = TypeVar("Value")
Args = TypeVarTuple("Args")


class Owner:
    """Whom callbacks belong to. Everything that is started under an owner belongs to it too."""

    def __init__(self) -> None:
        self.is_alive = True
        self.is_paused = False
        self.was_killed = False
        """Whether it has ended in the middle of its work: what it was about to catch is caught by nobody."""
        self.held: list[asyncio.Handle] = []
        """What came due while it was paused."""


OWNER: Final[ContextVar[Owner | None]] = ContextVar("owner", default=None)

OUTSIDE: Final = Context()
"""The context of what belongs to nobody."""


class VirtualLoop(asyncio.BaseEventLoop):
    """As much of an event loop as code behind the ports needs."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._owners: dict[int, Owner] = {}
        """By the id of the task: all tasks are kept until the end."""
        self.complaints: list[str] = []
        """What nobody caught."""

    # ------------------------------------------------------------ running

    def run(self, main: Coroutine[Any, Any, Value]) -> Value:
        """What `main` returns; whatever else is under way then is dropped."""
        task = self.create_task(main)
        events._set_running_loop(self)
        try:
            while not task.done():
                self._run_next()
        finally:
            events._set_running_loop(None)
            self._drop_the_rest()
        return task.result()

    def resume(self, owner: Owner) -> None:
        """Let a paused owner go on, with all that came due meanwhile."""
        owner.is_paused = False
        self._ready.extend(owner.held)
        owner.held.clear()

    def _run_next(self) -> None:
        if not self._ready:
            self._jump()
        handle = self._ready.popleft()
        if handle.cancelled():
            return
        owner = handle._context.get(OWNER)  # type: ignore[attr-defined]  # every handle has one
        if owner is None or (owner.is_alive and not owner.is_paused):
            handle._run()
        elif owner.is_alive:
            owner.held.append(handle)

    def _jump(self) -> None:
        assert self._timers, "everybody waits for somebody else"
        self._now = max(self._now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(self._timers)[2])

    def _drop_the_rest(self) -> None:
        """Here and now, and not whenever the garbage collector comes by."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some have not even begun
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # that is what is wanted
                    with suppress(RuntimeError):  # it would like to await something more
                        task.get_coro().close()
            self._tasks.clear()
        self._ready.clear()
        self._timers.clear()

    # ------------------------------------------------------------ what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[Unpack[Args]], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Args]], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, Value] | Coroutine[Any, Any, Value],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[Value]:
        # The stubs want a coroutine, and a loop may be given any awaitable generator.
        task: asyncio.Task[Value] = asyncio.Task(coro, loop=self, name=name, context=context)  # type: ignore[arg-type]
        owner = OWNER.get() if context is None else context.get(OWNER)
        if owner is not None:
            self._owners[id(task)] = owner
        self._tasks.append(task)  # kept: what belongs to a dead process must not be tidied up in the middle
        return task

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is skipped when its time comes."""

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        """Nothing of the operating system is open."""
        return not self.is_running()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        owner = self._owners.get(id(context.get("future", context.get("task"))))
        if owner is not None and owner.was_killed:
            return
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")
