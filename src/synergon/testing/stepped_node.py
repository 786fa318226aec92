"""A node that a test steps. It has the parts of a real node, but no loops, no lease thread and no child processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any, Final

from synergon.model.requirements import PROCESS
from synergon.node.attempts.attempt import Stop
from synergon.node.duty import Duty
from synergon.node.node import Node
from synergon.node.processes.executors import BackgroundLoop, BackgroundRun, LocalExecutor
from synergon.options.settings import Settings
from synergon.task import AnyTask
from synergon.testing.runner import TestRunner

LAST_SECONDS: Final = 2.0
"""How many seconds task functions may take to end when a drain is aborted."""

PLENTY: Final = 2**62
"""The amount of every resource: so large that the cost of tasks does not matter in a test."""

_numbers: Final = itertools.count(1)


class SteppedNode(Node):
    """Claims only when `step` is called. Two duties write outcomes and progress in the background."""

    runner_type = TestRunner
    runner: TestRunner

    async def start(self) -> None:
        """Register the node. Nothing renews its lease: the caller has given it one that does not end."""
        self.ledger.totals |= await self._executor.resources()
        await self.schedules.declare()
        await self.membership.join(f"test-{next(_numbers)}")
        self._duties = [
            Duty("completer", self.completer.step, self.clock, self._logger, self.outage),
            Duty("reports", self.completer.report_now, self.clock, self._logger, self.outage),
        ]
        for duty in self._duties:
            duty.start()

    async def step(self) -> bool:
        """Wake due tasks, claim once, and start what was claimed. Returns whether any task was started."""
        before = self.runner.admitted
        while await self.schedules.fire_due() == 0:
            pass
        while await self.alarm.wake_due() == 0:
            pass
        await self.acceptance.ask_now()
        self.scheduler.wake_all()
        await self.scheduler.step()  # which also writes the outcomes that wait for a claim
        return self.runner.admitted > before

    @property
    def is_busy(self) -> bool:
        """Whether an attempt runs, or has ended without its outcome being in the store yet."""
        return bool(self.runner.running) or self.is_settling

    @property
    def is_settling(self) -> bool:
        """Whether an attempt has ended and its outcome is not in the store yet."""
        return bool(self.completer.unwritten)

    async def _stop(self, grace: float | None) -> None:  # noqa: ARG002  a drain ends when nothing runs, or is aborted
        """Stop the node. If the drain was aborted, running tasks are handed back."""
        self.scheduler.close()
        self.acceptance.close()
        self.runner.stop_all(Stop.SHUTDOWN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await self.runner.is_idle.wait()
        self.runner.cancel_all()
        await self.completer.flushed()
        await self.hooks.wait_ended()
        await self._callbacks.wait_ended()
        for duty in self._duties:
            await duty.stop()
        await self.statistics.close()
        await self.membership.leave()
        await self.slots.close()
        await self._executor.close()


class ThreadExecutor(LocalExecutor):
    """Runs task functions in threads with the context of their asyncio task, and offers plenty of every resource."""

    def __init__(self, settings: Settings, kinds: Iterable[AnyTask]) -> None:
        super().__init__(settings)
        self._names = {PROCESS, *(name for task_type in kinds for name in task_type.requirements.cost)}

    async def resources(self) -> dict[str, int]:
        """More of each resource than all tasks of a test use."""
        return dict.fromkeys(self._names, PLENTY)

    async def run_in_thread(self, function: Callable[[], Any], *, is_command: bool = False) -> Any:
        """Run `function` in a thread with the caller's context, and return its value."""
        context = copy_context()
        return await super().run_in_thread(lambda: context.run(function), is_command=is_command)

    def start_in_background(self, loop: BackgroundLoop) -> BackgroundRun:  # noqa: ARG002  a lease without an end needs no renewal
        """Does nothing: the lease does not end."""
        return NothingInBackground()


class NothingInBackground:
    """Replaces the thread that renews the lease."""

    async def stop(self) -> None:
        """Does nothing."""
