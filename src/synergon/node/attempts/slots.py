"""Slots: asyncio tasks that run one attempt after another.

Creating an asyncio task costs more than everything else that a short task function needs, so slots are reused. A slot
is replaced instead if its last attempt was cancelled, changed context variables, or left a reference to its asyncio
task. So a task function always starts as if it were alone. A slot that finds more attempts waiting starts other slots
first, so that task functions that await run concurrently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextvars import copy_context
from sys import getrefcount
from typing import Final

from synergon.model.clock import Clock
from synergon.node.attempts.attempt import Attempt
from synergon.node.attempts.runner import Runner

STARTING: Final = 2
"""How many slots are started at once. Each of them starts as many again, so that their number doubles."""

BURST_SECONDS: Final = 0.005
"""After how many seconds a slot lets other asyncio tasks run, if its task functions never await."""


class Slots:
    """Runs every submitted attempt, in order. Has no limit of its own: admission has limited the attempts."""

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner = runner
        self._monotonic = clock.monotonic
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Attempt] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0

    def submit(self, attempts: Iterable[Attempt]) -> None:
        """Run these attempts as soon as possible."""
        self._pending.extend(attempts)
        self._start_more()

    async def close(self) -> None:
        """End the idle slots. No attempt may be running or waiting."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start_more(self) -> None:
        while self._starting < min(STARTING, len(self._pending)):
            self._starting += 1
            waiter = self._next_idle()
            if waiter is not None:
                waiter.set_result(None)
            else:
                task = self._loop.create_task(self._serve(), name="synergon-slot")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _next_idle(self) -> asyncio.Future[None] | None:
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():  # it is done if the slot's asyncio task was cancelled
                return waiter
        return None

    async def _serve(self) -> None:
        pristine = copy_context()
        is_clean = True
        while is_clean:
            self._starting -= 1
            is_clean = await self._work_off(pristine)
            if is_clean:
                waiter: asyncio.Future[None] = self._loop.create_future()
                self._idle.append(waiter)
                await waiter

    async def _work_off(self, pristine: object) -> bool:
        """Run the waiting attempts. Returns False if the last one made this slot unfit for reuse."""
        task = asyncio.current_task()
        assert task is not None
        began = self._monotonic()
        while self._pending:
            attempt = self._pending.popleft()
            if self._starting < STARTING:
                self._start_more()
            holders = getrefcount(task)
            await self._runner.run(attempt)
            # A remaining reference to the asyncio task, for instance in a timer, could cancel the next attempt.
            if task.cancelling() or getrefcount(task) > holders or copy_context() != pristine:
                self._start_more()
                return False
            if self._monotonic() - began > BURST_SECONDS:
                await asyncio.sleep(0)
                began = self._monotonic()
        return True
