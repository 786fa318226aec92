"""Nobody waits for nothing.

No task waits ready, or due, for longer than sweep and lease together while a node that could run it has room. A node
that left tasks behind because it was full comes back for them as soon as it is not. Whoever waits for a task is told of
its end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import FINAL, State

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

LOOK_SECONDS: Final = 0.5
RELEASE_SECONDS: Final = 0.2
"""How long a node may take to claim again after a body has ended."""
RECOVERY_SECONDS: Final = 8.0
"""How long a node may be slow after a trouble."""


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
            for process in self._world.processes:
                self._look_for_leftovers(process)
                self._look_for_the_untold(process)

    def _look(self) -> None:
        now, auditor = self._world.loop.time(), self._world.auditor
        waiting = {task_id for task_id in auditor.seen if self._could_run(task_id)}
        neglected = {task_id: free for task_id in waiting if (free := self._who_is_free(task_id)) is not None}
        self._neglected_since = {
            task_id: max(self._neglected_since.get(task_id, now), auditor.moved_at[task_id], process.troubled_until)
            for task_id, process in neglected.items()
        }
        for task_id, since in self._neglected_since.items():
            process = neglected[task_id]
            if now - since > process.sweep_seconds + process.settings.lease:
                self._world.fail(f"task {task_id} waits since {since:.1f} although {process} is free")

    def _could_run(self, task_id: int) -> bool:
        """Whether it waits for nothing but a node; that nobody has made it ready yet is no excuse."""
        row = self._world.auditor.row(task_id)
        return row.state is State.READY or (row.state is State.SCHEDULED and row.run_at <= self._world.auditor.now)

    def _look_for_leftovers(self, process: Process) -> None:
        now = self._world.loop.time()
        if not process.is_healthy or now - process.troubled_until < RECOVERY_SECONDS:
            return
        for kind, since in self._world.auditor.owed.get(process, {}).items():
            is_free = self._has_room(process, kind) and now - max(process.busy_at, since) > RELEASE_SECONDS
            if is_free and self._is_waiting(kind, since):
                self._world.fail(f"{process} left tasks of {kind} behind, has room again, and does not come back")

    def _look_for_the_untold(self, process: Process) -> None:
        """Whoever waits for a task is told of its end."""
        auditor = self._world.auditor
        for task_id in process.waits_for:
            has_ended = task_id not in auditor.seen or auditor.seen[task_id].state in FINAL
            since = max(auditor.moved_at[task_id], process.troubled_until)
            is_late = self._world.loop.time() - since > process.sweep_seconds + process.settings.lease
            if has_ended and is_late and process.is_healthy:
                self._world.fail(f"{process} waits for task {task_id}, which has ended, and was not told")

    def _is_waiting(self, kind: str, since: float) -> bool:
        auditor = self._world.auditor
        return any(
            seen.state is State.READY and auditor.moved_at[task_id] < since and auditor.is_open(row)
            for task_id, seen in auditor.seen.items()
            if (row := auditor.row(task_id)).task.kind == kind
        )

    def _who_is_free(self, task_id: int) -> Process | None:
        """The process that has been well for longest among those that could run it."""
        world = self._world
        row = world.auditor.row(task_id)
        if not world.auditor.is_open(row):
            return None
        free = [process for process in world.processes if process.is_healthy and self._has_room(process, row.task.kind)]
        return min(free, key=lambda process: process.troubled_until, default=None)

    def _has_room(self, process: Process, kind: str) -> bool:
        if kind not in process.kinds:
            return False
        executions, policy = self._world.executions, self._world.kinds[kind].policy
        max_running = policy.max_running
        if max_running is not None and executions.in_use(process, kind) >= max_running:
            return False
        if policy.runs_in == "thread" and executions.threads_in_use(process) >= process.settings.threads:
            return False
        return executions.in_use(process) < process.settings.concurrency
