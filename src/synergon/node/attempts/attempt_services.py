"""What running bodies may ask of their node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from synergon.model.lifecycle import State
from synergon.model.outcomes import Progress
from synergon.node.attempts.attempt import Attempt, Services
from synergon.node.attempts.completer import Completer
from synergon.stores.base import Store, TaskTransaction


class AttemptServices(Services):
    """Progress, ownership, transactions."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        completer: Completer,
        *,
        may_go_on: Callable[[Attempt], bool],
        hold_seconds: float,
    ) -> None:
        self.loop = loop
        self._store = store
        self._completer = completer
        self._may_go_on = may_go_on
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

    async def begin(self) -> TaskTransaction:
        """A store transaction; it may not be held so long that the lease is in danger."""
        return await self._store.begin(self._hold_seconds)
