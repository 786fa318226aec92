"""Ends running attempts when the node stops: waits for a grace period, requests the end of the attempts, and waits a
little longer.

Uninterruptible attempts are not requested to end, and the node waits for them without a limit. It does not wait for
other attempts that do not end: nothing can end a thread. If the process may exit, the node hands them back, and the
process must exit. Otherwise they are unfinished: the node keeps their claims and its lease until they end.
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
"""How many seconds attempts may take to end after the request, before that is logged or the process exits."""


class Shutdown:
    """Ends the running attempts of a node that stops."""

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
        self.is_waiting: bool = False
        """Whether the shutdown waits for uninterruptible attempts, so that `attempt_ended` must be called whenever an
        attempt ends."""
        self._undisturbed = asyncio.Event()
        self.was_abandoned: bool = False
        """Whether attempts that did not end were handed back while they ran."""

    def attempt_ended(self) -> None:
        """Note that an attempt has ended."""
        if not self._uninterruptible():
            self._undisturbed.set()

    def reject_from_inside(self, grace: float | None) -> None:
        """Raise SynergonError if a task function stops its own node with `grace=None`, or is uninterruptible: the stop
        would wait for the function, and the function for the stop."""
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
        """End the running attempts. Returns when none runs, or when those that do not end were handed back or
        logged."""
        if await self._is_idle_within(grace):
            return
        self._runner.stop_all(Stop.SHUTDOWN)
        if not await self._is_idle_within(LAST_SECONDS):
            await self._leave_undisturbed()
            self._abandon()

    async def _is_idle_within(self, seconds: float | None) -> bool:
        """Wait until no attempt runs, for at most `seconds`, or without a limit if that is None. Returns whether none
        runs."""
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

    def _abandon(self) -> None:
        """Log the task functions that go on, and hand their tasks back if the process may exit. Child processes have
        ended by now, and coroutines unless they ignore their cancellation."""
        left = list(self._runner.running.values())
        if not left:
            return
        if self._may_exit:
            self._logger.warning("gives back tasks whose functions would not end: %s", _named(left))
            self.was_abandoned = True
            for attempt in left:
                self._completer.add(handed_back(attempt.claim))
            return
        self._logger.warning(
            "stops without task functions that will not end: %s; their tasks stay claimed until the functions end or "
            "this process exits",
            ", ".join(str(attempt.unfinished()) for attempt in left),
        )


def _named(attempts: Iterable[Attempt]) -> str:
    return ", ".join(f"{attempt.claim.id} ({attempt.claim.kind})" for attempt in attempts)
