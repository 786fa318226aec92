"""Hands back lost claims: tasks that this node has claimed without receiving the answer.

A claim that raised may have been committed, if only its answer was lost. Its tasks are then `running` on a live node
that does not run them, and no node would ever reap them.
"""

from __future__ import annotations

from typing import Final

from synergon.model.clock import Clock
from synergon.model.lifecycle import State
from synergon.model.outcomes import FencedOutcome, HandedBack
from synergon.model.task_records import TaskQuery, TaskRecord
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.runner import Runner
from synergon.stores.base import Store

RUNNING: Final = frozenset({State.RUNNING})
PAGE: Final = 1000


class LostClaims:
    """Hands tasks back after a claim has failed. Called while no claim is in flight."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        runner: Runner,
        completer: Completer,
        *,
        check_seconds: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._runner = runner
        self._completer = completer
        self._doubt_seconds = check_seconds
        self._check_until = 0.0
        self.must_check: bool = False
        """Whether tasks may be `running` on this node according to the store, although the node does not know them."""

    def claim_failed(self) -> None:
        """Note that a claim has failed. The store may commit it later, so one check is not enough."""
        self._check_until = self._clock.monotonic() + self._doubt_seconds
        self.must_check = True

    async def hand_back(self, node_id: str) -> None:
        """Hand back every task that is `running` on this node according to the store, but does not run here."""
        is_last_look = self._clock.monotonic() > self._check_until
        known = self._runner.running.keys() | self._runner.members.keys() | self._completer.unwritten
        for task in await self._running_of(node_id):
            if task.id not in known:
                self._completer.add(
                    FencedOutcome(
                        id=task.id,
                        claim_no=task.claim_no,
                        outcome=HandedBack(),
                        limit_key=task.limit_key,
                        group_id=task.group_id,
                    )
                )
        if is_last_look:
            self.must_check = False

    async def _running_of(self, node_id: str) -> list[TaskRecord]:
        found: list[TaskRecord] = []
        after: str | None = None
        while True:
            page = await self._store.list_tasks(TaskQuery(states=RUNNING, after=after, limit=PAGE))
            found += [task for task in page if task.node_id == node_id]
            after = page.next
            if after is None:
                return found
