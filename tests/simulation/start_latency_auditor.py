"""Where hints arrive, nobody waits for a sweep.

A task that is ready, or due, starts soon if a node that runs its kind does nothing at all. Whoever has enqueued a task
and waits for it is told soon of its end. A body that can be ended ends soon after somebody wants that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import FINAL, State
from synergon.model.nodes import HEARTBEATS_PER_LEASE

if TYPE_CHECKING:
    from tests.simulation.auditor import Seen
    from tests.simulation.network_world import NetworkWorld
    from tests.simulation.simulated_engine import Citizen

LOOK_SECONDS: Final = 0.1
AROUND_A_DEATH_SECONDS: Final = 1.0
"""Whoever dies takes along what it had heard or was about to tell."""
UNENDING: Final = {"stubborn", "heavy"}
"""Threads, which nobody can end."""
TELLING: Final = {"finish", "cancel"}
"""The statements whose caller knows whom to tell of the end. Who reaps, or finds what has expired, does not."""


class Promptness:
    """Looks ten times a second, in worlds in which hints arrive."""

    def __init__(self, world: NetworkWorld) -> None:
        self._world = world
        self._soon_seconds = world.climate.soon_seconds
        self._neglected_since: dict[int, float] = {}
        self._unheeded_since: dict[int, float] = {}

    async def run(self) -> None:
        """Look for ever."""
        climate = self._world.climate
        if climate.is_prompt_from is None:
            return
        await asyncio.sleep(climate.is_prompt_from)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look_for_the_neglected()
            self._look_for_the_unheeded()
            for process in self._world.citizens:
                self._look_for_the_untold(process)

    def _look_for_the_neglected(self) -> None:
        now, auditor = self._world.loop.time(), self._world.auditor
        idle = [process for process in self._world.citizens if self._is_idle(process)]
        waiting = [task_id for task_id, seen in auditor.seen.items() if self._should_start(task_id, seen)]
        self._neglected_since = {
            task_id: self._neglected_since.get(task_id, now)
            for task_id in waiting
            if any(auditor.row(task_id).task.kind in process.kinds for process in idle)
        }
        for task_id, since in self._neglected_since.items():
            if now - since > self._soon_seconds and not self._is_near_a_death(auditor.moved_at[task_id]):
                self._world.fail(f"task {task_id} could start since {since:.2f}, and nobody was told")

    def _should_start(self, task_id: int, seen: Seen) -> bool:
        row = self._world.auditor.row(task_id)
        if not self._world.auditor.is_open(row):
            return False
        return seen.state is State.READY or (seen.state is State.SCHEDULED and seen.run_at <= self._world.clock.wall())

    def _is_idle(self, process: Citizen) -> bool:
        """Whether it does nothing, and has been there for so long that everybody knows it."""
        is_known = self._world.loop.time() - process.troubled_until > process.settings.lease / HEARTBEATS_PER_LEASE
        return is_known and process.is_healthy and not self._world.executions.in_use(process)

    def _look_for_the_unheeded(self) -> None:
        now, auditor = self._world.loop.time(), self._world.auditor
        unwanted = {
            execution.task_id
            for execution in self._world.executions.live
            if execution.kind not in UNENDING and auditor.seen[execution.task_id].cancel_requested
        }
        self._unheeded_since = {task_id: self._unheeded_since.get(task_id, now) for task_id in unwanted}
        for task_id, since in self._unheeded_since.items():
            if now - since > self._soon_seconds and not self._is_near_a_death(auditor.moved_at[task_id]):
                self._world.fail(f"task {task_id} is to be cancelled since {since:.2f}, and its body runs on")

    def _look_for_the_untold(self, process: Citizen) -> None:
        auditor = self._world.auditor
        for task_id in process.waits_for & process.waits_for_own.keys():
            seen = auditor.seen.get(task_id)
            if seen is None or seen.state not in FINAL or not process.is_healthy:
                continue
            if auditor.moved_by[task_id] not in TELLING:
                continue
            if auditor.row(task_id).task.origin != process.row_id:  # somebody has replaced it, and is told instead
                continue
            moved_at = auditor.moved_at[task_id]
            since = max(moved_at, process.waits_for_own[task_id])
            if self._world.loop.time() - since > self._soon_seconds and not self._is_near_a_death(moved_at):
                self._world.fail(f"{process} waits for task {task_id}, which has ended at {moved_at:.2f}")

    def _is_near_a_death(self, moment: float) -> bool:
        return any(abs(moment - death) < AROUND_A_DEATH_SECONDS for death in self._world.deaths)
