"""IdleHooks: calls user functions that may enqueue work when the node has none.

At most one idle hook runs at a time, and none is called while the node is cordoned or stopping. The scheduler never
waits for one. Errors are logged. While an idle hook does not end, no other is called; it blocks nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from typing import Final

from synergon.client.sync_bridge import IDLE_HOOK_GUARD, IdleHookGuard
from synergon.model.clock import Clock
from synergon.node.callbacks.callbacks import STOP_SECONDS, Callbacks
from synergon.node.claims.admission import Admission
from synergon.node.claims.scheduler import Scheduler
from synergon.options.idle_hook import IdleHook


class IdleCall:
    """One call of an idle hook. A coroutine can be cancelled. A thread cannot, but its calls of the engine raise after
    `stop`."""

    def __init__(self, hook: IdleHook, callbacks: Callbacks) -> None:
        self._hook = hook
        self._name = f"the idle hook {hook.name}"
        self._guard = IdleHookGuard()
        self._is_in_thread = not inspect.iscoroutinefunction(hook.function)
        self.task: Final = callbacks.start(self._name, self._run(callbacks))

    def stop(self, why: str) -> None:
        """Make further calls of the engine by the hook raise, and cancel the hook if it is a coroutine."""
        self._guard.why_not = f"{self._name} cannot use the engine any more: {why}"
        if not self._is_in_thread:
            self.task.cancel()

    async def _run(self, callbacks: Callbacks) -> None:
        IDLE_HOOK_GUARD.set(self._guard)
        await callbacks.call(self._name, self._hook.function, on_thread_end=self._thread_ended)

    def _thread_ended(self) -> None:
        self._is_in_thread = False


class IdleHooks:
    """The duty that calls the idle hooks of a node when the node has nothing to run."""

    def __init__(
        self,
        hooks: Sequence[IdleHook],
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        callbacks: Callbacks,
        *,
        scheduler: Scheduler,
        admission: Admission,
    ) -> None:
        self.hooks: Final = tuple(hooks)
        """The idle hooks that the engine had when the node was made. If there are none, the node never checks whether
        it is idle."""
        self._clock = clock
        self._logger = logger
        self._callbacks = callbacks
        self._scheduler = scheduler
        self._admission = admission
        self._due = [0.0] * len(self.hooks)
        """For each hook, the moment of the monotonic clock from which it may be called again."""
        self._event = asyncio.Event()
        self._call: IdleCall | None = None
        self._is_open = True

    def _is_idle(self, kind: str | None) -> bool:
        """Whether the node has free capacity and nothing to run. If `kind` is given: free capacity for it, and nothing
        of it to run."""
        return self._scheduler.is_idle(kind) and self._admission.has_any_capacity(kind)

    def check_soon(self) -> None:
        """Wake this duty, so that it checks whether the node is idle."""
        self._event.set()

    async def step(self) -> None:
        """Call the hook that has been due longest. If no hook may be called, wait until one may."""
        self._event.clear()
        now = self._clock.monotonic()
        callable_now = [number for number in self._numbers_due(now) if self._may_call(self.hooks[number])]
        if not callable_now:
            await self._wait([due - now for due in self._due if due > now])
            return
        number = min(callable_now, key=self._due.__getitem__)
        try:
            await self._call_hook(self.hooks[number])
        finally:
            self._due[number] = self._clock.monotonic() + self.hooks[number].every

    def close(self) -> None:
        """Call no more hooks, and stop the one that runs."""
        self._is_open = False
        if self._call is not None:
            self._call.stop("its node stops")

    async def wait_ended(self) -> None:
        """Return when no hook is running, or after STOP_SECONDS."""
        if self._call is not None:
            await asyncio.wait([self._call.task], timeout=STOP_SECONDS)

    def _numbers_due(self, now: float) -> list[int]:
        return [number for number, due in enumerate(self._due) if due <= now]

    def _may_call(self, hook: IdleHook) -> bool:
        return self._is_open and self._is_idle(hook.kind)

    async def _wait(self, pauses: list[float]) -> None:
        try:
            async with asyncio.timeout(min(pauses, default=None)):
                await self._event.wait()
        except TimeoutError:
            return

    async def _call_hook(self, hook: IdleHook) -> None:
        """Call a hook in an asyncio task of its own, so that this duty can be stopped whatever the hook does. Stops the
        hook after its timeout."""
        call = self._call = IdleCall(hook, self._callbacks)
        _, late = await asyncio.wait([call.task], timeout=hook.timeout)
        if late:
            self._logger.error("the idle hook %s did not end within %g s; stopping it", hook.name, hook.timeout)
            call.stop("its timeout has passed")
            await asyncio.wait([call.task])
        self._call = None
        if not call.task.cancelled() and (error := call.task.exception()) is not None and self._is_open:
            self._logger.error(
                "the idle hook %s raised; the next call is in %g s at the earliest",
                hook.name,
                hook.every,
                exc_info=error,
            )
