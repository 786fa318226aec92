"""Room for urgent tasks: running work that may be preempted yields, the cheapest first.

Promise: nobody is asked to yield before the urgent task is claimed, and no more are asked than it needs. It starts the
moment that enough has really ended. Whoever yields goes back uncharged, keeps its place, and is spared for a while. If
those who were asked do not yield in time, the urgent task goes back, nobody else is asked in their stead, and this node
preempts nothing for its kind for a while: other nodes have their turn.
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
"""How long whoever was asked to yield may take."""
PAUSE_SECONDS: Final = 30.0
"""For how long nothing is preempted for a kind after nobody has yielded to a task of it."""


class Preemption:
    """Knows who would yield, and who waits for that."""

    def __init__(
        self,
        kinds: Mapping[str, AnyTask],
        ledger: Ledger,
        running: Mapping[int, Attempt],
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        signals: Signals,
    ) -> None:
        self.is_needed = any(task_type.policy.urgent for task_type in kinds.values())
        """Whether the node has an urgent kind; without one nothing is ever preempted here."""
        self._signals = signals
        self._ledger = ledger
        self._running = running
        self._clock = clock
        self._logger = logger
        self._waiting: list[Attempt] = []
        self._served: set[Attempt] = set()
        """Those of them for whom enough was there, or was asked to yield."""
        self._yielding: dict[Attempt, float] = {}
        """Who was asked to yield, and until when that is expected to happen."""
        self._backoffs: dict[str, float] = {}
        self._returning: set[int] = set()
        """Tasks that have yielded, and of which the store does not know yet that they are ready again."""

    # ------------------------------------------------------------ what an urgent task may count on

    def yielding(self, kind: str) -> Counter[str]:
        """What running tasks would yield to a task of this kind: slots, child processes, resources."""
        return Counter() if self.backoff_for(kind) else self.offered

    @property
    def offered(self) -> Counter[str]:
        """What they would yield to one whose kind does not rest."""
        return _sum(self._victims())

    def backoff_for(self, kind: str) -> float:
        """For how many seconds nobody is asked to yield to this kind, because somebody did not; 0: it does not rest."""
        return max(self._backoffs.get(kind, 0.0) - self._clock.monotonic(), 0.0)

    def _victims(self) -> list[Attempt]:
        """Those who would yield, the cheapest first: least work is lost with who began last."""
        now = self._clock.monotonic()
        return [
            attempt
            for attempt in reversed(list(self._running.values()))
            if attempt.task_type.policy.preemptible and attempt.stop is None and attempt.protected_until <= now
        ]

    # ------------------------------------------------------------ a claim has come

    def admit(self, attempts: Iterable[Attempt]) -> None:
        """Take room for these, or promise it to those for whom others have to yield, who are asked now."""
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
        """Whoever would have yielded when the claim was asked for may not any more: then there is not enough for all
        that wait, and those are served, in the order in which they came, for whom there is."""
        now = self._clock.monotonic()
        self._yielding = {attempt: until for attempt, until in self._yielding.items() if until > now}
        victims, served = self._victims(), list[Attempt]()
        for attempt in self._waiting:
            if not _beyond(self._lacking([*served, attempt]), victims):
                served.append(attempt)
        self._served = set(served)
        self._ask(chosen_victims(victims, self._lacking(served)))

    def _lacking(self, attempts: Iterable[Attempt]) -> Counter[str]:
        """What these need and is neither there nor about to be."""
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

    # ------------------------------------------------------------ back to their places

    def returning(self, attempt: Attempt) -> None:
        """It has yielded, and is being given back."""
        self._returning.add(attempt.claim.id)

    def returned(self, ids: Collection[int]) -> None:
        """The store knows what became of these."""
        if self._returning:
            self._returning.difference_update(ids)
            if not self._returning:
                self._signals.capacity_freed()

    @property
    def is_anybody_returning(self) -> bool:
        """Whether a claim would pass over somebody who keeps the place it had: then it has to wait a moment."""
        return bool(self._returning)

    # ------------------------------------------------------------ until there is room

    async def wait_for_capacity(self, attempt: Attempt) -> bool:
        """Return when there is room for it; False: nobody has yielded in time."""
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
            "urgent task %d (%s) goes back: nobody has yielded to it within %g s",
            claim.id,
            claim.kind,
            YIELD_SECONDS,
            extra={"task_id": claim.id, "kind": claim.kind},
        )

    def release(self, attempt: Attempt) -> None:
        """It has ended; who waits may start."""
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
        """In the order in which they came; who comes later takes nothing that an earlier one still waits for, unless
        nobody was asked to yield to that."""
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
    """As few of them as give what is lacking, the cheapest first; none, if all together do not."""
    chosen: list[Attempt] = []
    for attempt in victims:
        left = _beyond(lacking, chosen)
        if not left:
            break
        if not left.keys().isdisjoint(_share(attempt)):
            chosen.append(attempt)
    if _beyond(lacking, chosen):
        return []
    for attempt in reversed(chosen):  # one that came late may have made earlier ones superfluous
        others = [other for other in chosen if other is not attempt]
        if not _beyond(lacking, others):
            chosen = others
    return chosen


def _beyond(lacking: Mapping[str, int], chosen: Iterable[Attempt]) -> Counter[str]:
    left = Counter(lacking)
    left.subtract(_sum(chosen))
    return +left


def _share(attempt: Attempt) -> Counter[str]:
    """What it holds while it runs."""
    share = Counter(attempt.cost)
    share[SLOT] = 1
    return share


def _sum(attempts: Iterable[Attempt]) -> Counter[str]:
    total: Counter[str] = Counter()
    for attempt in attempts:
        total.update(_share(attempt))
    return total
