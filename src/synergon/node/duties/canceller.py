"""Ends bodies that somebody wants cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from synergon.node.attempts.attempt import Stop
from synergon.node.attempts.runner import Runner
from synergon.stores.base import Store


class Canceller:
    """Whoever says that a task is to be cancelled gives a reason to look. The store decides: only there it is written
    whether the claim that runs here is meant, or an earlier one of the same task."""

    def __init__(self, store: Store, runner: Runner) -> None:
        self._store = store
        self._runner = runner
        self._event = asyncio.Event()
        self.early: set[int] = set()
        """Tasks that do not run here as far as is known; the claim in flight may bring them."""

    def look(self) -> None:
        """Somebody may want something cancelled that runs here."""
        self._event.set()

    def wish(self, task_id: int) -> None:
        """The same for one task."""
        if task_id in self._runner.running:
            self.look()
        else:
            self.early.add(task_id)

    def claimed(self, ids: Iterable[int]) -> None:
        """These have come."""
        if not self.early.isdisjoint(ids):
            self.look()

    def claim_is_over(self) -> None:
        """What has not come by now runs elsewhere, or nowhere."""
        self.early.clear()

    async def step(self, node_id: str) -> None:
        """Wait for a reason, and end what is to end."""
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
            # What has begun since the question was asked is another attempt, which nobody meant.
            if self._runner.running.get(task_id) is asked.get(task_id):
                self._runner.stop_one(task_id, Stop.CANCEL)
