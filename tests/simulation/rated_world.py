"""A world whose kinds share a rate: three at once, then four in a second, and some tasks count more than once."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any, Final

from tests.simulation.auditor import Auditor, Seen
from tests.simulation.chaos import Chaos
from tests.simulation.process import Process
from tests.simulation.task_functions import RETRY, Script, perform
from tests.simulation.waiting_auditor import Patience
from tests.simulation.workload import Workload
from tests.simulation.world import World, at_once

from synergon import Context, Engine, Rate
from synergon.call import Call
from synergon.model.claims import Claim, ClaimRequest

PER_SECOND: Final = 4
BURST: Final = 3
COST: Final = 1_000_000 // PER_SECOND
"""How many microseconds restore one unit."""
RATED: Final = ("called", "mailed")
LATE_SECONDS: Final = 0.2

engine: Final = Engine("memory://", name="rated")
engine.limit("api", rate=Rate(PER_SECOND, burst=BURST))


@engine.task(retry=RETRY, timeout=4, limits=["api"])
async def called(script: Script, ctx: Context) -> int:
    """At the rate, with as many units as the call says."""
    return await perform(script, ctx)


@engine.task(retry=RETRY, timeout=4, limits=["api"], units=2)
async def mailed(script: Script, ctx: Context) -> int:
    """At the rate, two units each."""
    return await perform(script, ctx)


@engine.task(retry=RETRY, timeout=4)
async def polite(script: Script, ctx: Context) -> int:
    """At no rate."""
    return await perform(script, ctx)


class RatedWorld(World):
    """The faults of every world, and a rate that holds through all of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"rated {seed}"))
        self.kinds = engine.kinds

    def make_auditor(self) -> Auditor:
        return RateAuditor(self, self.tables)

    def populate(self) -> None:
        at_once(self.store.declare(*engine._registry.declarations()))
        super().populate()

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [RatePatience(self).run(), self.live_through(Chaos(self), RateWorkload(self))]


class RateWorkload(Workload):
    """Tasks of all kinds; some have units of their own."""

    def _new_call(self) -> Call[Any]:
        kind = self._chances.choice((*RATED, *RATED, "polite"))
        options = self._options()
        if kind in RATED and self._chances.random() < 0.3:
            options["units"] = self._chances.choice((1, 3, 8))
        call = engine.call(kind, script=self._script())
        return call.with_options(**options) if options else call


class RateAuditor(Auditor):
    """A bucket of its own: a claim takes the first tasks in order, of rated kinds only while a unit is left in it."""

    level = BURST * COST
    """What is left in the bucket, in microseconds; below zero after a task with many units."""
    filled_at = 0

    def level_at(self, now: int) -> int:
        """What is left at a moment."""
        return min(self.level + now - self.filled_at, BURST * COST)

    def _check_claim(
        self,
        process: Process,
        args: tuple[ClaimRequest],
        claims: list[Claim],
        changed: dict[int, Seen | None],
        before: dict[int, Seen],
    ) -> None:
        super()._check_claim(process, args, claims, changed, before)
        self.level = self.level_at(self.now)
        self.filled_at = self.now
        self.level -= sum(self.row(claim.id).task.units * COST for claim in claims if claim.kind in RATED)

    def _first_of(self, eligible: list[int], request: ClaimRequest) -> list[int]:
        level, closed = self.level_at(self.now), set[str]()
        taken: list[int] = []
        for task_id in eligible:
            task = self.row(task_id).task
            candidates = [*taken, task_id]
            if task.kind in closed or super()._first_of(candidates, request) != candidates:
                continue
            if task.kind in RATED:
                if level < COST:
                    closed.add(task.kind)
                    continue
                level -= task.units * COST
            taken.append(task_id)
        return taken

    @property
    def free_for_seconds(self) -> float:
        """For how long a unit has been left in the bucket."""
        return (self.now - self.filled_at - max(COST - self.level, 0)) / 1_000_000


class RatePatience(Patience):
    """A task that the rate holds back waits for something, and starts soon after the rate is free."""

    def _look_for_leftovers(self, process: Process) -> None:
        auditor = self._world.auditor
        assert isinstance(auditor, RateAuditor)
        if auditor.free_for_seconds > LATE_SECONDS:
            super()._look_for_leftovers(process)

    def _could_run(self, task_id: int) -> bool:
        auditor = self._world.auditor
        assert isinstance(auditor, RateAuditor)
        is_free = auditor.level_at(auditor.now) >= COST
        return super()._could_run(task_id) and (is_free or auditor.row(task_id).task.kind not in RATED)
