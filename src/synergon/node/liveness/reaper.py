"""Gives back the work of the dead.

Starts from running tasks and joins leases, so work whose owner left no trace is found too. A process of this host that
is gone is seen at once, without waiting for its lease.
"""

from __future__ import annotations

import logging
from typing import Final

from synergon.model.clock import Clock
from synergon.model.lifecycle import State
from synergon.model.nodes import NodeRecord
from synergon.node.processes.executors import Executor
from synergon.node.signals import Signals
from synergon.stores.base import Store

BATCH: Final = 500
LOOK_SECONDS: Final = 0.25
"""How often the processes of this host are looked at; that asks the operating system and not the store."""
LONGEST_BEAT_SECONDS: Final = 5.0
FULL_LOOK_BEATS: Final = 3
"""The dead are seen at each beat in the list of nodes; tasks whose node left no row are looked for at each third."""


class Reaper:
    """Runs on every node; any number may do so at once."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        signals: Signals,
        *,
        beat_seconds: float,
    ) -> None:
        self._store = store
        self._executor = executor
        self._clock = clock
        self._logger = logger
        self._beat_seconds = min(beat_seconds, LONGEST_BEAT_SECONDS)
        self._signals = signals
        self._nodes: list[NodeRecord] = []
        self._beats = 0

    async def step(self) -> None:
        """Reap, learn who is there, then watch them until the next beat or a death."""
        self._nodes = await self._store.nodes()
        self._signals.nodes_read(self._nodes)
        if self._beats % FULL_LOOK_BEATS == 0 or self._gone() or any(node.lease_left <= 0 for node in self._nodes):
            await self.reap()
        self._beats += 1
        until = self._clock.monotonic() + self._beat_seconds
        while self._clock.monotonic() < until and not self._gone():
            await self._clock.sleep(min(LOOK_SECONDS, self._beat_seconds))

    async def reap(self) -> None:
        """Take everything that belongs to nobody."""
        gone = self._gone()
        while True:
            reaped = await self._store.reap(gone, BATCH)
            for task in reaped:
                self._logger.warning(
                    "task %d (%s) was taken back from dead node %s: %s, crashes: %d",
                    task.id,
                    task.kind,
                    task.node_id,
                    task.state,
                    task.crashes,
                    extra={"task_id": task.id, "kind": task.kind},
                )
            self._signals.reaped(reaped)
            ready = [task.kind for task in reaped if task.state is State.READY]
            self._signals.ready([*ready, *(kind for task in reaped for kind in task.released)])
            self._signals.ended_unrun([task.id for task in reaped if task.state.is_final])
            if len(reaped) < BATCH:
                break
        self._nodes = [node for node in self._nodes if node.id not in gone]

    def _gone(self) -> list[str]:
        return [node.id for node in self._nodes if self._executor.is_gone(node.process)]
