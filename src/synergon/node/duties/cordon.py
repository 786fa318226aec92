"""The cordon of a node: whether it claims tasks, and whether it stops as soon as none runs.

A cordoned node starts no task. The store guarantees that: it rejects the node's claims from the commit of the operator
action on. This module notes the cordon in the node, so that the node does not claim in vain, calls no idle hooks, and
announces its tasks to other nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from enum import StrEnum

from synergon.model.nodes import NodeRecord
from synergon.model.operator_actions import RESTART_EXIT_CODE
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.runner import Runner
from synergon.node.claims.scheduler import Scheduler
from synergon.node.duties.sweep import SweepInterval
from synergon.node.signals import Signals
from synergon.stores.base import Store


class Departure(StrEnum):
    """Why a node stops when its last task has ended."""

    DRAIN = "drain"
    RESTART = "restart"


class Cordon:
    """Whether the node is cordoned, and whether it stops when its last task has ended."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        runner: Runner,
        completer: Completer,
        logger: logging.LoggerAdapter[logging.Logger],
        *,
        signals: Signals,
        sweep: SweepInterval,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._runner = runner
        self._completer = completer
        self._logger = logger
        self._signals = signals
        self._sweep = sweep
        self.departure: Departure | None = None
        self._departure_task: asyncio.Task[None] | None = None
        self.exit_code: int = 0
        """The exit code of the process after the node has stopped."""

    @property
    def is_cordoned(self) -> bool:
        """Whether the node is cordoned, so that it starts no task."""
        return self._scheduler.is_cordoned

    def cordon(self) -> None:
        """Cordon the node: start no further task."""
        if not self.is_cordoned:
            self._scheduler.cordon()
            self._signals.cordon_changed()

    def uncordon(self) -> None:
        """Uncordon the node: start tasks again, and do not stop after the last one. Has no effect on a node that is
        already stopping."""
        if self._departure_task is not None:
            self._departure_task.cancel()
        self._departure_task = self.departure = None
        if self.is_cordoned:
            self._scheduler.uncordon()
            self._signals.cordon_changed()

    def depart(self, why: Departure) -> None:
        """Start no further task, and stop the node when its last task has ended. If called twice, the last reason
        counts."""
        self.departure = why
        self._scheduler.cordon()
        self._signals.cordon_changed()
        if self._departure_task is None:
            self._departure_task = asyncio.get_running_loop().create_task(self._depart(), name="synergon-departure")

    def close(self) -> None:
        """Note that the node stops, and cancel a planned departure."""
        if self._departure_task is not None:
            self._departure_task.cancel()

    async def _depart(self) -> None:
        await self._scheduler.wait_until_idle()
        await self._runner.is_idle.wait()
        await self._completer.flushed()
        if self.departure is Departure.RESTART:
            self.exit_code = RESTART_EXIT_CODE
        self._logger.info("nothing runs here any more: the node ends (%s)", self.departure)
        self._signals.stop_requested()

    def check_node_table(self, nodes: Iterable[NodeRecord], node_id: str) -> None:
        """Cordon the node if its row says so. The rows may be older than what the node knows, so a row without a cordon
        means nothing."""
        if any(node.id == node_id and node.is_cordoned for node in nodes):
            self.found_cordoned()

    def found_cordoned(self) -> None:
        """Cordon the node, because the store says that it is cordoned, and start a sweep, which reads the operator
        actions."""
        if not self.is_cordoned:
            self.cordon()
            self._sweep.sweep_now()

    async def check(self, node_id: str) -> None:
        """If the node is cordoned and the store says otherwise, uncordon it. A claim that was in flight during an
        uncordon may have reported the cordon too late."""
        if not self.is_cordoned or self.departure is not None:
            return
        row = next((node for node in await self._store.nodes() if node.id == node_id), None)
        if row is not None and not row.is_cordoned:
            self.uncordon()
