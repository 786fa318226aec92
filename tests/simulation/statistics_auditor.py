"""Compares the statistics with the successes that the store has accepted.

Nothing is counted twice, whatever was lost or repeated on the way. What is missing had been accepted from processes
that were killed, in their last heartbeat, or that could not reach the store at their end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergon.model.nodes import HEARTBEATS_PER_LEASE
from synergon.model.task_statistics import SUCCEEDED

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

SLACK_SECONDS: Final = 1.0
"""The way of an answer and of a statement in calm weather."""
TROUBLED_SECONDS: Final = 6.0
"""A process in which something went wrong this shortly before its end may not have reached the store since then."""


class StatisticsAuditor:
    """Looks once, at the end of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._successes: dict[Process, list[float]] = {}
        self._cut_off: set[Process] = set()
        self._latest: dict[int, Process] = {}
        """The processes of the successes, by task."""
        self._may_miss = 0

    def succeeded(self, process: Process, task_id: int) -> None:
        """The store has accepted a success from this process. What was on its way when the process was cut off
        arrives later, and its verdict does not."""
        self._successes.setdefault(process, []).append(self._world.loop.time())
        self._may_miss += process in self._cut_off
        self._latest[task_id] = process

    def deleted(self, task_id: int) -> None:
        """A task is deleted. If its process still waits for the verdict, a repeated outcome finds no row, and counts as
        stale."""
        process = self._latest.pop(task_id, None)
        if process is not None and process.troubled_until > self._world.loop.time() - TROUBLED_SECONDS:
            self._may_miss += 1

    def ended(self, process: Process, how: str) -> None:
        """A process has ended: some of its successes may not be in the statistics."""
        now, successes = self._world.loop.time(), self._successes.get(process, [])
        if process.troubled_until > now - TROUBLED_SECONDS or process.is_paused:
            self._may_miss += len(successes)
            self._cut_off.add(process)
        elif how != "has stopped":
            beat_seconds = process.settings.lease / HEARTBEATS_PER_LEASE
            self._cut_off.add(process)
            self._may_miss += sum(moment > now - beat_seconds - SLACK_SECONDS for moment in successes)

    def check(self) -> None:
        """Compare. All processes have ended."""
        accepted = sum(map(len, self._successes.values()))
        rows = self._world.tables.statistics.values()
        counted = sum(row.numbers.ended.get(SUCCEEDED, 0) for row in rows)
        if counted > accepted:
            self._world.fail(f"the statistics have {counted} successes, but only {accepted} were accepted")
        if counted < accepted - self._may_miss:
            self._world.fail(
                f"the statistics have {counted} of {accepted} successes, and at most {self._may_miss} may be missing"
            )
