"""The canceller: ends running attempts whose cancellation was requested."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from synergon.node.attempts.attempt import Stop
from synergon.node.attempts.runner import Runner
from synergon.stores.base import Store


class Canceller:
    """Checks the store for cancel requests whenever a hint mentions one. The store decides, because only its rows show
    whether the request is for the claim that runs here or for an earlier one."""

    def __init__(self, store: Store, runner: Runner) -> None:
        self._store = store
        self._runner = runner
        self._event = asyncio.Event()
        self.requested_before_start: set[int] = set()
        """Tasks that were to be cancelled before they run here; the claim in flight may take them."""

    def check_soon(self) -> None:
        """Check soon for cancel requests."""
        self._event.set()

    def note_cancel_request(self, task_id: int) -> None:
        """Check soon for a cancel request of this task."""
        if task_id in self._runner.running:
            self.check_soon()
        else:
            self.requested_before_start.add(task_id)

    def claimed(self, ids: Iterable[int]) -> None:
        """Note that these tasks were claimed."""
        if not self.requested_before_start.isdisjoint(ids):
            self.check_soon()

    def claim_is_over(self) -> None:
        """Note that the claim has ended: tasks that it did not take do not run here."""
        self.requested_before_start.clear()

    async def step(self, node_id: str) -> None:
        """Wait for a reason to check, then end the attempts whose cancellation was requested."""
        await self._event.wait()
        self._event.clear()
        asked = dict(self._runner.running)
        if not asked:
            return
        try:
            unwanted = await self._store.cancel_requests(node_id)
        except BaseException:
            self._event.set()
            raise
        for task_id in unwanted:
            # An attempt that started after the query is a new one, for which there was no request.
            if self._runner.running.get(task_id) is asked.get(task_id):
                self._runner.stop_one(task_id, Stop.CANCEL)
