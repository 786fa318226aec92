"""Runs the engine's coroutines for code without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from synergon.client.cooperative import FairWaiters
from synergon.errors import NotConnected, SynergonError

if TYPE_CHECKING:
    from synergon.client.connection import Connection

Value = TypeVar("Value")

END_SECONDS: Final = 5.0
"""How many seconds a closing event loop waits for calls to end by themselves, and then for those that it has
cancelled."""

CHECK_SECONDS: Final = 1.0
"""How often, in seconds, a waiting caller checks that the event loop still runs: a loop that stops notifies no
thread."""


class IdleHookGuard:
    """Rejects further calls of an idle hook that was stopped. A hook in a thread cannot be ended."""

    def __init__(self) -> None:
        self.why_not: str | None = None
        """Why calls of the hook are rejected. None if they are not."""
        self._waiters = FairWaiters()

    def check(self) -> None:
        """Raise NotConnected if the hook may make no more calls, with the reason."""
        if self.why_not is not None:
            raise NotConnected(self.why_not)

    async def check_after_other_tasks(self) -> None:
        """Let all other asyncio tasks run once, then `check`. Otherwise a hook whose calls never suspend, or that makes
        thousands at once, would block the event loop."""
        await self._waiters.wait()
        self.check()


IDLE_HOOK_GUARD: Final[ContextVar[IdleHookGuard | None]] = ContextVar("synergon_idle_hook_guard", default=None)
"""The guard of the idle hook that is calling. None for all other callers."""


class Connectable(Protocol):
    """The methods of an engine that the bridge calls."""

    async def connect(self) -> object:
        """Connect on the running event loop."""

    async def stop(self) -> object:
        """Stop and disconnect."""


def _ended(is_own_loop: bool) -> str:
    return "the engine was closed" if is_own_loop else "the event loop that this engine is connected on has ended"


class SyncBridge:
    """Runs coroutines for synchronous callers: on the event loop of the connected engine, otherwise on a loop of its
    own."""

    def __init__(self, engine: Connectable, connection: Connection) -> None:
        self._engine = engine
        self._connection = connection
        self._lock = threading.Lock()
        self._submitting = threading.Lock()
        """Held while a call is submitted and while the bridge's own loop ends, so that no call goes to an ended
        loop."""
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._process_id = os.getpid()
        """The process in which the bridge's own loop runs."""

    def call(self, function: Callable[[], Awaitable[Value]]) -> Value:
        """Run the coroutine that `function` creates, and return its result. Raises NotConnected if the event loop ends
        first."""
        self._reject_running_loop()
        if (guard := IDLE_HOOK_GUARD.get()) is not None:
            guard.check()
        self._connection.check_process()
        loop = self._connection.loop or self._start()
        with self._submitting:
            is_own = loop is self._own_loop or loop is not self._connection.loop
            coroutine = self._await(function)
            try:
                future = asyncio.run_coroutine_threadsafe(coroutine, loop)
            except RuntimeError:  # it is closed
                coroutine.close()
                raise NotConnected(f"{_ended(is_own)} before this call") from None
        try:
            return future.result() if is_own else self._result(future, loop, coroutine)
        except CancelledError:
            raise NotConnected(f"{_ended(is_own)} during this call; it may have taken effect") from None

    @staticmethod
    def _result(
        future: Future[Value], loop: asyncio.AbstractEventLoop, coroutine: Coroutine[object, object, Value]
    ) -> Value:
        """The result of a call on an event loop that the bridge does not run. Raises CancelledError if that loop has
        stopped."""
        while not wait([future], timeout=CHECK_SECONDS).done:
            if loop.is_closed():
                if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                    coroutine.close()  # else it would warn that it was never awaited
                raise CancelledError
            if not loop.is_running() and future.cancel():  # if the loop continues, it does not run the call
                raise CancelledError
        return future.result()

    def close(self) -> None:
        """Disconnect, and end the bridge's own event loop if there is one."""
        with self._lock:
            loop, self._own_loop = self._own_loop, None
            if self._process_id != os.getpid():  # in a forked process the loop belongs to the parent
                return
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    async def _end(self) -> None:
        """Stop the engine, and wait for asyncio tasks that still use the loop, such as a worker."""
        await self._engine.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=END_SECONDS)

    @staticmethod
    async def _await(function: Callable[[], Awaitable[Value]]) -> Value:
        return await function()

    @staticmethod
    def _reject_running_loop() -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise SynergonError("a *_sync call would block the running event loop; await the call without _sync instead")

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._own_loop is None or self._process_id != os.getpid():
                loop = asyncio.new_event_loop()
                threading.Thread(target=self._serve, args=(loop,), name="synergon-sync-bridge", daemon=True).start()
                try:
                    asyncio.run_coroutine_threadsafe(self._await(self._engine.connect), loop).result()
                except BaseException:
                    loop.call_soon_threadsafe(loop.stop)
                    raise
                self._own_loop, self._process_id = loop, os.getpid()
            return self._own_loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        with self._submitting:
            loop.run_until_complete(self._cancel_others())
            loop.close()

    @staticmethod
    async def _cancel_others() -> None:
        """Cancel calls that have not ended by themselves, because their callers wait in other threads."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        if others:
            await asyncio.wait(others, timeout=END_SECONDS)
