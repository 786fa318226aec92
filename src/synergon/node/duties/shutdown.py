"""Ends running attempts when the node stops: waits for a grace period, asks them to end, and waits a little longer.

Uninterruptible attempts are not asked to end, and the node waits for them without a limit. It also waits for attempts
that do not end, unless the process may exit: then it hands them back, and the process must exit, because nothing else
can end a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from synergon.errors import SynergonError
from synergon.node.attempts.attempt import Attempt, Stop
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.outcomes import handed_back
from synergon.node.attempts.runner import Runner

LAST_SECONDS: Final = 2.0
"""How long attempts that were asked to end may take before that is logged, or the process exits."""


class Shutdown:
    """Knows which attempts still run, and ends them."""

    def __init__(
        self,
        runner: Runner,
        completer: Completer,
        logger: logging.LoggerAdapter[logging.Logger],
        *,
        may_exit: bool,
    ) -> None:
        self._runner = runner
        self._logger = logger
        self._may_exit = may_exit
        self._completer = completer
        self.is_waiting = False
        """The shutdown waits for uninterruptible attempts and must be told of every end. Otherwise ends are not
        checked."""
        self._undisturbed = asyncio.Event()
        self.was_abandoned = False
        """Attempts that did not end were handed back while they ran."""

    def attempt_ended(self) -> None:
        """Note that an attempt has ended."""
        if not self._uninterruptible():
            self._undisturbed.set()

    def reject_from_inside(self, grace: float | None) -> None:
        """Raise if a task function stops its own node without a time limit: it would wait for itself."""
        current = asyncio.current_task()
        for attempt in self._runner.running.values():
            if attempt.asyncio_task is not current:
                continue
            if grace is None:
                raise SynergonError(
                    "a task function cannot stop its own engine with grace=None: it would wait for itself; give a grace"
                )
            if attempt.task_type.policy.uninterruptible:
                raise SynergonError(
                    "an uninterruptible task function cannot stop its own engine: it would wait for itself"
                )

    async def end_functions(self, grace: float | None) -> None:
        """Return when no attempt runs, or none that can be ended."""
        if await self._is_idle_within(grace):
            return
        self._runner.stop_all(Stop.SHUTDOWN)
        if not await self._is_idle_within(LAST_SECONDS):
            await self._leave_undisturbed()
            await self._wait_for_the_last()

    async def _is_idle_within(self, seconds: float | None) -> bool:
        """Whether no attempt runs after this time; None waits without a limit."""
        try:
            async with asyncio.timeout(seconds):
                await self._runner.is_idle.wait()
        except TimeoutError:
            return False
        return True

    def _uninterruptible(self) -> list[Attempt]:
        return [attempt for attempt in self._runner.running.values() if attempt.is_uninterruptible]

    async def _leave_undisturbed(self) -> None:
        left = self._uninterruptible()
        if left:
            self._logger.info("waits for tasks that are uninterruptible: %s", _named(left))
            self.is_waiting = True
            while self._uninterruptible():
                self._undisturbed.clear()
                await self._undisturbed.wait()

    async def _wait_for_the_last(self) -> None:
        """Wait for threads. Coroutines and child processes have ended by now."""
        left = list(self._runner.running.values())
        if not left:
            return
        if self._may_exit:
            self._logger.warning("gives back tasks whose functions would not end: %s", _named(left))
            self.was_abandoned = True
            for attempt in left:
                self._completer.add(handed_back(attempt.claim))
            return
        self._logger.warning("waits for task functions that will not end: %s", _named(left))
        await self._runner.is_idle.wait()


def _named(attempts: Iterable[Attempt]) -> str:
    return ", ".join(f"{attempt.claim.id} ({attempt.claim.kind})" for attempt in attempts)
