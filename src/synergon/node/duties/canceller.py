"""The canceller: ends running attempts whose cancellation was requested, and extends the timeouts of attempts that get
more time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from synergon.node.attempts.runner import Runner
from synergon.stores.base import Store


class Canceller:
    """Checks the store for requests to cancel or extend attempts whenever a hint mentions one. The store decides,
    because only its rows show whether the request is for the claim that runs here or for an earlier one."""

    def __init__(self, store: Store, runner: Runner) -> None:
        self._store = store
        self._runner = runner
        self._event = asyncio.Event()
        self.requested_before_start: set[int] = set()
        """Tasks with a cancel request that do not run here yet. The claim in flight may take them."""

    def check_soon(self) -> None:
        """Wake the canceller, so that it reads the cancel requests."""
        self._event.set()

    def note_cancel_request(self, task_id: int) -> None:
        """Note that the cancellation of this task was requested. Wakes the canceller if the task runs here."""
        if self._runner.find(task_id) is not None:
            self.check_soon()
        else:
            self.requested_before_start.add(task_id)

    def claimed(self, ids: Iterable[int]) -> None:
        """Wake the canceller if the cancellation of one of these claimed tasks was requested before."""
        if not self.requested_before_start.isdisjoint(ids):
            self.check_soon()

    def claim_is_over(self) -> None:
        """Note that the claim in flight has ended. Tasks that it did not take do not run here."""
        self.requested_before_start.clear()

    async def step(self, node_id: str) -> None:
        """Wait for a reason to check, then carry out the requests for the attempts of this node."""
        await self._event.wait()
        self._event.clear()
        asked = {**self._runner.running, **self._runner.members}
        if not asked:
            return
        try:
            requests = await self._store.requests(node_id)
        except BaseException:
            self._event.set()
            raise
        for request in requests:
            attempt = asked.get(request.id)
            if attempt is None or self._runner.find(request.id) is not attempt:
                continue  # an attempt that started after the query is a new one, for which there was no request
            if request.cancel_requested:
                attempt.cancel()
            elif request.extended_by is not None:
                self._runner.set_extension(attempt, request.extended_by)
