"""The end of what runs when its node stops: grace, then a request to end, then a little patience.

What is uninterruptible is not asked to end, and is waited for however long it takes. What will not end is waited for,
too, unless the process may exit: then it is given back, and the process must end, since nothing else can end a thread.
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
"""How long bodies that were asked to end may take before something is said, or done, about it."""


class Shutdown:
    """Knows what still runs, and how to end it."""

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
        """It waits for uninterruptible tasks, and has to be told of every end; else what still runs is not gone
        through."""
        self._undisturbed = asyncio.Event()
        self.was_abandoned = False
        """Bodies that would not end were given back while they ran."""

    def look(self) -> None:
        """Something has ended."""
        if not self._uninterruptible():
            self._undisturbed.set()

    def reject_from_inside(self, grace: float | None) -> None:
        """A body that stops its own node, which gives it all the time it wants, would wait for itself."""
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
        """Return when nothing runs any more, or nothing that could be ended."""
        if await self._is_idle_within(grace):
            return
        self._runner.stop_all(Stop.SHUTDOWN)
        if not await self._is_idle_within(LAST_SECONDS):
            await self._leave_undisturbed()
            await self._wait_for_the_last()

    async def _is_idle_within(self, seconds: float | None) -> bool:
        """Whether nothing runs after so long; None: however long it takes."""
        try:
            async with asyncio.timeout(seconds):
                await self._runner.is_idle.wait()
        except TimeoutError:
            return False
        return True

    def _uninterruptible(self) -> list[Attempt]:
        return [attempt for attempt in self._runner.running.values() if attempt.is_undisturbed]

    async def _leave_undisturbed(self) -> None:
        left = self._uninterruptible()
        if left:
            self._logger.info("waits for tasks that are uninterruptible: %s", _named(left))
            self.is_waiting = True
            while self._uninterruptible():
                self._undisturbed.clear()
                await self._undisturbed.wait()

    async def _wait_for_the_last(self) -> None:
        """Coroutines and children have ended by now; a thread ends when it ends."""
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
