"""Calls idle hooks: users' functions that may make work when there is none.

Promise: never two at once, never while the node is cordoned or stops, never where the scheduler would wait for it. What
one raises is logged and changes nothing. One that will not end keeps the others from their turn, and nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence

from synergon.client.sync_bridge import IDLE_HOOK_GUARD, IdleHookGuard
from synergon.model.clock import Clock
from synergon.node.callbacks.callbacks import LAST_SECONDS, Callbacks
from synergon.node.claims.admission import Admission
from synergon.node.claims.scheduler import Scheduler
from synergon.options.idle_hook import IdleHook


class IdleCall:
    """One call of a hook. A coroutine can be cancelled; of a thread the calls to the engine can be refused."""

    def __init__(self, hook: IdleHook, callbacks: Callbacks) -> None:
        self._hook = hook
        self._what = f"the idle hook {hook.name}"
        self._guard = IdleHookGuard()
        self._is_in_thread = not inspect.iscoroutinefunction(hook.function)
        self.task = callbacks.begin(self._what, self._run(callbacks))

    def end(self, why: str) -> None:
        """Let it come to its end."""
        self._guard.why_not = f"{self._what} may do nothing more: {why}"
        if not self._is_in_thread:
            self.task.cancel()

    async def _run(self, callbacks: Callbacks) -> None:
        IDLE_HOOK_GUARD.set(self._guard)
        await callbacks.call(self._what, self._hook.function, on_thread_end=self._thread_ended)

    def _thread_ended(self) -> None:
        self._is_in_thread = False


class IdleHooks:
    """Runs as a duty, and only where there are hooks."""

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
        self.hooks = tuple(hooks)
        self._clock = clock
        self._logger = logger
        self._callbacks = callbacks
        self._scheduler = scheduler
        self._admission = admission
        self._due = [0.0] * len(self.hooks)
        """From when on each may be called again, by the monotonic clock."""
        self._event = asyncio.Event()
        self._call: IdleCall | None = None
        self._is_open = True

    def _is_idle(self, kind: str | None) -> bool:
        """Whether the node has free capacity and nothing to run; of this kind, if one is given."""
        return self._scheduler.is_at_rest(kind) and self._admission.has_any_room(kind)

    def look(self) -> None:
        """The node may have come to rest."""
        if self.hooks:
            self._event.set()

    async def step(self) -> None:
        """Call the hook whose turn it is, or wait until there may be one."""
        self._event.clear()
        now = self._clock.monotonic()
        ready = [number for number in self._waiting(now) if self._may_call(self.hooks[number])]
        if not ready:
            await self._rest([due - now for due in self._due if due > now])
            return
        number = min(ready, key=self._due.__getitem__)
        try:
            await self._make(self.hooks[number])
        finally:
            self._due[number] = self._clock.monotonic() + self.hooks[number].every

    def close(self) -> None:
        """Call nothing more, and let the one that is called come to its end."""
        self._is_open = False
        if self._call is not None:
            self._call.end("its node stops")

    async def ended(self) -> None:
        """Return when none is called any more, or when waiting is of no use."""
        if self._call is not None:
            await asyncio.wait([self._call.task], timeout=LAST_SECONDS)

    def _waiting(self, now: float) -> list[int]:
        return [number for number, due in enumerate(self._due) if due <= now]

    def _may_call(self, hook: IdleHook) -> bool:
        return self._is_open and self._is_idle(hook.kind)

    async def _rest(self, pauses: list[float]) -> None:
        try:
            async with asyncio.timeout(min(pauses, default=None)):
                await self._event.wait()
        except TimeoutError:
            return

    async def _make(self, hook: IdleHook) -> None:
        """The call has a task of its own: whatever it does, this duty can be stopped."""
        call = self._call = IdleCall(hook, self._callbacks)
        _, late = await asyncio.wait([call.task], timeout=hook.timeout)
        if late:
            self._logger.error("the idle hook %s did not end within %g s; it is asked to", hook.name, hook.timeout)
            call.end("its time is over")
            await asyncio.wait([call.task])
        self._call = None
        if not call.task.cancelled() and (error := call.task.exception()) is not None and self._is_open:
            self._logger.error(
                "the idle hook %s raised; it is called again in %g s at the earliest",
                hook.name,
                hook.every,
                exc_info=error,
            )
