"""Preemption: running tasks that may be preempted yield to urgent tasks, the cheapest first.

No task is asked to yield before the urgent task is claimed, and only as many are asked as it needs. The urgent task
starts as soon as enough of them have ended. A task that yields is handed back without a charge, keeps its position, and
is protected from preemption for a while. If tasks do not yield in time, the urgent task is handed back, no other tasks
are asked instead, and this node preempts nothing for the kind for a while, so that other nodes can run the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from synergon.model.clock import Clock
from synergon.model.requirements import SLOT
from synergon.node.attempts.attempt import Attempt, Stop
from synergon.node.claims.ledger import Ledger
from synergon.node.signals import Signals
from synergon.task import AnyTask

YIELD_SECONDS: Final = 5.0
"""How many seconds a task that was asked to yield may take to end."""
PAUSE_SECONDS: Final = 30.0
"""For how many seconds nothing is preempted for a kind after running tasks did not yield to it."""


class Preemption:
    """Chooses the running tasks that yield, and starts the urgent tasks that wait for them."""

    def __init__(
        self,
        kinds: Mapping[str, AnyTask],
        ledger: Ledger,
        running: Mapping[int, Attempt],
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        signals: Signals,
    ) -> None:
        self.is_needed: Final = any(task_type.policy.urgent for task_type in kinds.values())
        """Whether the node has an urgent kind. Without one, nothing is preempted here."""
        self._signals = signals
        self._ledger = ledger
        self._running = running
        self._clock = clock
        self._logger = logger
        self._waiting: list[Attempt] = []
        self._served: set[Attempt] = set()
        """The waiting urgent tasks for which there was enough capacity, or enough tasks were asked to yield."""
        self._yielding: dict[Attempt, float] = {}
        """The attempts that were asked to yield, and by when they should have ended."""
        self._backoffs: dict[str, float] = {}
        self._returning: set[int] = set()
        """The tasks that have yielded and that the store has not made ready again yet."""

    # ------------------------------------------------------------ capacity for urgent tasks

    def yielding(self, kind: str) -> Counter[str]:
        """The capacity that running tasks would yield to a task of this kind: slots, child processes, resources. Empty
        during a back-off of the kind."""
        return Counter() if self.backoff_for(kind) else self.offered

    @property
    def offered(self) -> Counter[str]:
        """The capacity that running tasks would yield to an urgent kind without a back-off."""
        return _sum(self._victims())

    def backoff_for(self, kind: str) -> float:
        """For how many more seconds no task is asked to yield to this kind. 0 without a back-off."""
        return max(self._backoffs.get(kind, 0.0) - self._clock.monotonic(), 0.0)

    def _victims(self) -> list[Attempt]:
        """The attempts that would yield, the cheapest first: those that started last lose the least work."""
        now = self._clock.monotonic()
        return [
            attempt
            for attempt in reversed(list(self._running.values()))
            if attempt.task_type.policy.preemptible and attempt.stop is None and attempt.protected_until <= now
        ]

    # ------------------------------------------------------------ after a claim

    def admit(self, attempts: Iterable[Attempt]) -> None:
        """Take capacity for these attempts. For urgent attempts that do not fit, promise the capacity, and ask other
        attempts to yield."""
        is_any_waiting = False
        for attempt in attempts:
            if attempt.task_type.policy.urgent and not self._fits(attempt):
                attempt.capacity_wait = asyncio.get_running_loop().create_future()
                self._waiting.append(attempt)
                self._ledger.promised.take(attempt.claim.kind, cost=attempt.cost)
                is_any_waiting = True
            else:
                self._take(attempt)
        if is_any_waiting:
            self._ask_for_waiting()

    def _take(self, attempt: Attempt) -> None:
        self._ledger.take(attempt.claim.kind, is_command=attempt.task_type.is_command, cost=attempt.cost)

    def _fits(self, attempt: Attempt) -> bool:
        free = self._free() - _sum(self._waiting)
        return all(free[name] >= amount for name, amount in _share(attempt).items())

    def _free(self) -> Counter[str]:
        ledger = self._ledger
        free = Counter(ledger.available)
        free[SLOT] = ledger.concurrency - ledger.in_use
        return free

    def _ask_for_waiting(self) -> None:
        """Ask attempts to yield to the waiting urgent tasks. Some that would have yielded when the claim was sent may
        have ended since. If there is not enough for all, the waiting tasks are served in the order of their claims."""
        now = self._clock.monotonic()
        self._yielding = {attempt: until for attempt, until in self._yielding.items() if until > now}
        victims, served = self._victims(), list[Attempt]()
        for attempt in self._waiting:
            if not _beyond(self._lacking([*served, attempt]), victims):
                served.append(attempt)
        self._served = set(served)
        self._ask(chosen_victims(victims, self._lacking(served)))

    def _lacking(self, attempts: Iterable[Attempt]) -> Counter[str]:
        """The capacity that these attempts lack: what they need, less what is free and what the attempts that were
        asked to yield will free."""
        lacking = _sum(attempts)
        lacking.subtract(self._free())
        lacking.subtract(_sum(self._yielding))
        return +lacking

    def _ask(self, chosen: Iterable[Attempt]) -> None:
        until = self._clock.monotonic() + YIELD_SECONDS
        for attempt in chosen:
            claim = attempt.claim
            self._logger.info(
                "task %d (%s) is asked to yield to urgent work", claim.id, claim.kind, extra={"task_id": claim.id}
            )
            self._yielding[attempt] = until
            attempt.ask_to_stop(Stop.PREEMPTED)

    # ------------------------------------------------------------ handing back

    def hand_back_started(self, attempt: Attempt) -> None:
        """Note that a preempted attempt has ended and its task is being handed back."""
        self._returning.add(attempt.claim.id)

    def outcomes_applied(self, ids: Collection[int]) -> None:
        """Note that the store has applied the outcomes of these tasks."""
        if self._returning:
            self._returning.difference_update(ids)
            if not self._returning:
                self._signals.capacity_freed()

    @property
    def is_hand_back_pending(self) -> bool:
        """Whether the store has not yet applied the hand-back of a preempted task. No claim is sent until then, because
        it could take later tasks before the preempted one."""
        return bool(self._returning)

    # ------------------------------------------------------------ waiting for capacity

    async def wait_for_capacity(self, attempt: Attempt) -> bool:
        """Wait for the capacity of an urgent attempt. Returns True when it has the capacity, False if other attempts
        have not yielded in time."""
        assert attempt.capacity_wait is not None
        try:
            async with asyncio.timeout(YIELD_SECONDS):
                await attempt.capacity_wait
        except TimeoutError:
            if attempt.capacity_wait is not None:
                self._give_up(attempt)
                return False
        return True

    def _give_up(self, attempt: Attempt) -> None:
        claim = attempt.claim
        self._backoffs[claim.kind] = self._clock.monotonic() + PAUSE_SECONDS
        asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._signals.capacity_freed)
        self._logger.warning(
            "urgent task %d (%s) is handed back: running tasks did not yield to it within %g s",
            claim.id,
            claim.kind,
            YIELD_SECONDS,
            extra={"task_id": claim.id, "kind": claim.kind},
        )

    def release(self, attempt: Attempt) -> None:
        """Release the capacity of an attempt that has ended, and start waiting urgent attempts that fit now."""
        claim = attempt.claim
        if attempt.capacity_wait is not None:
            self._waiting.remove(attempt)
            self._served.discard(attempt)
            attempt.capacity_wait = None
            self._ledger.promised.release(claim.kind, cost=attempt.cost)
        else:
            self._ledger.release(claim.kind, is_command=attempt.task_type.is_command, cost=attempt.cost)
        if self._yielding:
            self._yielding.pop(attempt, None)
        if self._waiting:
            self._start_waiting()

    def _start_waiting(self) -> None:
        """Start waiting attempts in the order of their claims. A later attempt does not take capacity that an earlier
        one waits for, unless no task was asked to yield to the earlier one."""
        free = self._free()
        for attempt in list(self._waiting):
            share = _share(attempt)
            is_enough = all(free[name] >= amount for name, amount in share.items())
            if is_enough or attempt in self._served:
                free.subtract(share)
            if is_enough and attempt.capacity_wait is not None and not attempt.capacity_wait.done():
                self._start(attempt)

    def _start(self, attempt: Attempt) -> None:
        assert attempt.capacity_wait is not None
        self._waiting.remove(attempt)
        self._served.discard(attempt)
        self._ledger.promised.release(attempt.claim.kind, cost=attempt.cost)
        self._take(attempt)
        attempt.capacity_wait.set_result(None)
        attempt.capacity_wait = None


def chosen_victims(victims: list[Attempt], lacking: Mapping[str, int]) -> list[Attempt]:
    """The attempts that must yield to free what is lacking: the cheapest first, and as few as possible. Empty if all of
    them together do not free enough."""
    chosen: list[Attempt] = []
    for attempt in victims:
        left = _beyond(lacking, chosen)
        if not left:
            break
        if not left.keys().isdisjoint(_share(attempt)):
            chosen.append(attempt)
    if _beyond(lacking, chosen):
        return []
    for attempt in reversed(chosen):  # an attempt that was added late may make earlier ones unnecessary
        others = [other for other in chosen if other is not attempt]
        if not _beyond(lacking, others):
            chosen = others
    return chosen


def _beyond(lacking: Mapping[str, int], chosen: Iterable[Attempt]) -> Counter[str]:
    left = Counter(lacking)
    left.subtract(_sum(chosen))
    return +left


def _share(attempt: Attempt) -> Counter[str]:
    """The capacity that the attempt uses while it runs: its cost and one slot."""
    share = Counter(attempt.cost)
    share[SLOT] = 1
    return share


def _sum(attempts: Iterable[Attempt]) -> Counter[str]:
    total: Counter[str] = Counter()
    for attempt in attempts:
        total.update(_share(attempt))
    return total
