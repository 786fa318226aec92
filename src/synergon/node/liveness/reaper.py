"""The reaper: takes tasks from dead nodes.

The store looks for running tasks without a live lease, so it also finds tasks whose node has no row. The death of a
process on this host is noticed at once, before its lease ends.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from synergon.model.clock import Clock
from synergon.model.lifecycle import State
from synergon.model.nodes import NodeRecord
from synergon.model.tasks import Reaped
from synergon.node.processes.executors import Executor
from synergon.node.signals import Signals
from synergon.stores.base import Store

BATCH: Final = 500
PROCESS_CHECK_SECONDS: Final = 0.25
"""How often, in seconds, the processes of this host are checked. This asks the operating system, not the store."""
MAX_BEAT_SECONDS: Final = 5.0
FULL_REAP_BEATS: Final = 3
"""After how many beats the store is searched again for tasks whose node has no row. Dead nodes with a row are noticed
at every beat."""


class Reaper:
    """Takes the running tasks of dead nodes. Every node runs a reaper, and several may run at once."""

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
        self._beat_seconds = min(beat_seconds, MAX_BEAT_SECONDS)
        self._signals = signals
        self._nodes: list[NodeRecord] = []
        self._beats = 0

    async def step(self) -> None:
        """Read the rows of the nodes, reap if needed, then check local processes until the next beat or a death."""
        self._nodes = await self._store.nodes()
        self._signals.nodes_read(self._nodes)
        if self._beats % FULL_REAP_BEATS == 0 or self._gone() or any(node.lease_remaining <= 0 for node in self._nodes):
            await self.reap()
        self._beats += 1
        until = self._clock.monotonic() + self._beat_seconds
        while self._clock.monotonic() < until and not self._gone():
            await self._clock.sleep(min(PROCESS_CHECK_SECONDS, self._beat_seconds))

    async def reap(self) -> None:
        """Take all tasks of dead nodes, in batches, and signal what became of them."""
        gone = self._gone()
        while True:
            reaped = await self._store.reap(gone, BATCH)
            self._log(reaped)
            self._signals.reaped(reaped)
            ready = [task.kind for task in reaped if task.state is State.READY]
            self._signals.ready([*ready, *(kind for task in reaped for kind in task.released)])
            self._signals.ended_unrun([task.id for task in reaped if task.state.is_final])
            if reaped and reaped[-1].ended:
                self._signals.expired(reaped[-1].ended)
            if len(reaped) < BATCH:
                break
        self._nodes = [node for node in self._nodes if node.id not in gone]

    def _log(self, reaped: Sequence[Reaped]) -> None:
        """Log one line for each dead node, and one for each task on the level DEBUG."""
        names = {node.id: f"{node.name} ({node.id})" for node in self._nodes}
        tasks_by_node: dict[str, list[Reaped]] = {}
        for task in reaped:
            tasks_by_node.setdefault(task.node_id, []).append(task)
            self._logger.debug(
                "task %d (%s) was taken back from dead node %s: %s, suspect after %d deaths of its owners",
                task.id,
                task.kind,
                task.node_id,
                task.state,
                task.owner_deaths,
                extra={"task_id": task.id, "kind": task.kind},
            )
        for node_id, tasks in tasks_by_node.items():
            states = Counter(task.state.value for task in tasks)
            self._logger.warning(
                "took back %d %s of dead node %s: %s",
                len(tasks),
                "task" if len(tasks) == 1 else "tasks",
                names.get(node_id, node_id),
                ", ".join(f"{count} {state}" for state, count in sorted(states.items())),
            )

    def _gone(self) -> list[str]:
        return [node.id for node in self._nodes if self._executor.is_gone(node.process)]
