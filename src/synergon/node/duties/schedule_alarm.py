"""The schedule alarm: fires schedules when they are due. It sleeps until the next such moment."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from typing import Final

from synergon.model.clock import Clock
from synergon.model.schedules import FiredTask, NewSchedule
from synergon.node.duties.next_moment import NextMoment
from synergon.node.metrics import Metrics
from synergon.node.signals import Signals
from synergon.stores.base import Store

BATCH: Final = 100


class ScheduleAlarm:
    """Fires the schedules that this node declares, and those that were made at run time. Any number of nodes may do
    this at once: the store creates at most one task for each occurrence."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        signals: Signals,
        *,
        declared: Mapping[str, NewSchedule],
        kinds: Container[str],
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._logger = logger
        self._signals = signals
        self.declared: Final = dict(declared)
        """The schedules that the code of this node declares, by name."""
        self._kinds = kinds
        self._metrics = metrics
        self._moment = NextMoment(clock)
        self._warned: set[str] = set()
        """Kinds for which a warning was logged, because no live node knew them."""

    def check_now(self) -> None:
        """Check for due schedules now: a schedule may have been made or changed."""
        self._moment.check_now()

    async def declare(self) -> None:
        """Store the schedules that the code of this node declares."""
        if not self.declared:
            return
        for name in await self._store.declare_schedules(list(self.declared.values())):
            del self.declared[name]
            self._logger.error(
                "the schedule %r of this code is not stored: one of that name was made at run time; rename one of them",
                name,
            )

    async def step(self) -> None:
        """Fire due schedules, then sleep until the next moment."""
        await self.fire_due()
        await self._moment.wait()

    async def fire_due(self) -> int | None:
        """Fire due schedules, at most BATCH. Returns the microseconds until the next one is due. None if there is
        none."""
        self._moment.begin()
        fired = await self._store.fire(self.declared.keys(), BATCH)
        if fired.next_in is not None:
            self._moment.due_in(fired.next_in / 1_000_000)
        if fired.tasks:
            self._metrics.note_accepted(fired.tasks)
            self._announce(fired.tasks)
            await self._warn_of_unknown({task.kind: task for task in fired.tasks if task.kind not in self._kinds})
        return fired.next_in

    def _announce(self, tasks: tuple[FiredTask, ...]) -> None:
        self._signals.ready([task.kind for task in tasks if task.needs_claim])
        if any(task.needs_alarm for task in tasks):
            self._signals.due_in(0)

    async def _warn_of_unknown(self, tasks: Mapping[str, FiredTask]) -> None:
        """Log a warning for each kind of these tasks that no live node knows. The warning is not repeated until a live
        node has known the kind."""
        if not tasks:
            return
        nodes = [node for node in await self._store.nodes() if node.lease_remaining > 0]
        for kind, task in tasks.items():
            if any(kind in node.kinds for node in nodes):
                self._warned.discard(kind)
            elif kind not in self._warned:
                self._warned.add(kind)
                self._logger.warning(
                    "schedule %r has created task %d of kind %r, which no live node knows; it waits for one that does",
                    task.schedule,
                    task.id,
                    kind,
                    extra={"kind": kind},
                )
