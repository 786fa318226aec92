"""What running bodies may ask of their node."""

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
        """Store it soon; safe from any thread."""
        is_waiting = attempt.progress is not None
        attempt.progress = progress
        if not is_waiting:  # one that is not written yet has told the completer already
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self.loop.call_soon_threadsafe(self._completer.progressed, attempt)

    async def still_owned(self, attempt: Attempt) -> bool:
        """Whether the claim is still the one in the store, and nobody wants the body to end."""
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
        """Whether a body need not end, as far as this node knows. Where it is cordoned, a body that may be preempted is
        told to leave, and goes back at no cost when it does."""
        if self._scheduler.is_cordoned and attempt.task_type.policy.preemptible:
            attempt.ask_to_leave()
        return not self._scheduler.is_fenced and attempt.stop is None

    async def begin(self) -> TaskTransaction:
        """A store transaction; it may not be held so long that the lease is in danger."""
        return await self._store.begin(self._hold_seconds)
