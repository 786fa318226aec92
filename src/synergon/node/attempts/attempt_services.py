"""Implements the services of a node for its running task functions."""

from __future__ import annotations

import asyncio
import contextlib

from synergon.model.claims import Claim
from synergon.model.lifecycle import State
from synergon.model.outcomes import Progress
from synergon.model.task_records import TaskRecord
from synergon.node.attempts.attempt import Attempt, Services
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.deadlines import Deadlines
from synergon.node.claims.scheduler import Scheduler
from synergon.stores.base import Store, TaskTransaction


class AttemptServices(Services):
    """Serves the calls of running task functions: progress, timeouts, ownership, transactions."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        completer: Completer,
        deadlines: Deadlines,
        scheduler: Scheduler,
        *,
        hold_seconds: float,
    ) -> None:
        self.loop = loop
        self._store = store
        self._completer = completer
        self._deadlines = deadlines
        self._scheduler = scheduler
        self._hold_seconds = hold_seconds

    def report_progress(self, attempt: Attempt, progress: Progress) -> None:
        """Queue the progress of an attempt; the completer writes it to the store. Safe from any thread."""
        is_waiting = attempt.progress is not None
        attempt.progress = progress
        if not is_waiting:  # if earlier progress is not written yet, the completer knows already
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self.loop.call_soon_threadsafe(self._completer.progressed, attempt)

    def extend_timeout(self, attempt: Attempt, seconds: float) -> None:
        """Move the deadline of the attempt. Safe from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self.loop.call_soon_threadsafe(self._deadlines.extend, attempt, seconds)

    async def still_owned(self, attempt: Attempt) -> bool:
        """Whether the claim is still current in the store, and neither the store nor this node wants the attempt to
        end. For a batch, one such task is enough."""
        if not self._may_go_on(attempt):
            return False
        claims = [item.claim for item in attempt.items]
        records = await self._store.get([claim.id for claim in claims])
        return any(map(_is_current, claims, records))

    def _may_go_on(self, attempt: Attempt) -> bool:
        """Whether this node has no reason to end the task function. If the node is cordoned and the task may be
        preempted, the function is asked to end; the task is then handed back without a charge."""
        if self._scheduler.is_cordoned and attempt.task_type.policy.preemptible:
            attempt.request_hand_back()
        return not self._scheduler.is_fenced and attempt.stop is None

    async def begin(self) -> TaskTransaction:
        """Open a transaction of the store. It is rolled back after `hold_seconds`, before its locks could endanger the
        lease."""
        return await self._store.begin(self._hold_seconds)


def _is_current(claim: Claim, record: TaskRecord | None) -> bool:
    return (
        record is not None
        and record.state is State.RUNNING
        and record.claim_no == claim.claim_no
        and not record.cancel_requested
    )
