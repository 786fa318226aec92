"""No task waits ready for longer than sweep and lease together while a node that could run it has room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from synergon.lifecycle import State
from synergon.node.node import SWEEP_SECONDS

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

LOOK_SECONDS: Final = 0.5


class Patience:
    """Looks twice a second who waits, and whether anybody is free."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._neglected_since: dict[int, float] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look()

    def _look(self) -> None:
        now, auditor = self._world.loop.time(), self._world.auditor
        waiting = {task_id for task_id, seen in auditor.seen.items() if seen.state is State.READY}
        neglected = {task_id: free for task_id in waiting if (free := self._who_is_free(task_id)) is not None}
        self._neglected_since = {
            task_id: max(self._neglected_since.get(task_id, now), auditor.moved_at[task_id], process.troubled_until)
            for task_id, process in neglected.items()
        }
        for task_id, since in self._neglected_since.items():
            process = neglected[task_id]
            if now - since > SWEEP_SECONDS + process.settings.lease:
                self._world.fail(f"task {task_id} waits since {since:.1f} although {process} is free")

    def _who_is_free(self, task_id: int) -> Process | None:
        """The process that has been well for longest among those that could run it."""
        world = self._world
        row = world.auditor.row(task_id)
        if row.task.queue in world.auditor.paused:
            return None
        free = [process for process in world.processes if process.is_healthy and self._has_room(process, row.task.kind)]
        return min(free, key=lambda process: process.troubled_until, default=None)

    def _has_room(self, process: Process, kind: str) -> bool:
        executions, max_running = self._world.executions, self._world.kinds[kind].policy.max_running
        if max_running is not None and executions.in_use(process, kind) >= max_running:
            return False
        return executions.in_use(process) < process.settings.concurrency
