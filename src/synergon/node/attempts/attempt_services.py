"""Implements the services of a node for its running task functions."""

from __future__ import annotations

import asyncio
import contextlib

from synergon.model.lifecycle import State
from synergon.model.outcomes import Progress
from synergon.node.attempts.attempt import Attempt, Services
from synergon.node.attempts.completer import Completer
from synergon.node.claims.scheduler import Scheduler
from synergon.stores.base import Store, TaskTransaction


class AttemptServices(Services):
    """Progress, ownership, transactions."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        completer: Completer,
        scheduler: Scheduler,
        *,
        hold_seconds: float,
    ) -> None:
        self.loop = loop
        self._store = store
        self._completer = completer
        self._scheduler = scheduler
        self._hold_seconds = hold_seconds

    def report_progress(self, attempt: Attempt, progress: Progress) -> None:
        """Store the progress soon. Safe from any thread."""
        is_waiting = attempt.progress is not None
        attempt.progress = progress
        if not is_waiting:  # if earlier progress is not written yet, the completer knows already
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self.loop.call_soon_threadsafe(self._completer.progressed, attempt)

    async def still_owned(self, attempt: Attempt) -> bool:
        """Whether the claim is still current in the store, and the attempt was not asked to end."""
        if not self._may_go_on(attempt):
            return False
        (record,) = await self._store.get([attempt.claim.id])
        return (
            record is not None
            and record.state is State.RUNNING
            and record.claim_no == attempt.claim.claim_no
            and not record.cancel_requested
        )

    def _may_go_on(self, attempt: Attempt) -> bool:
        """Whether this node knows no reason to end the task function. On a cordoned node a task that may be preempted
        is asked to leave, and is handed back without a charge."""
        if self._scheduler.is_cordoned and attempt.task_type.policy.preemptible:
            attempt.request_hand_back()
        return not self._scheduler.is_fenced and attempt.stop is None

    async def begin(self) -> TaskTransaction:
        """Open a transaction of the store. It may not be held so long that the lease is at risk."""
        return await self._store.begin(self._hold_seconds)
