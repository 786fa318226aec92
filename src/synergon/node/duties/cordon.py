"""Whether a node takes new work, and whether it leaves as soon as nothing runs on it.

Promise: a cordoned node starts nothing. The store takes care of that: from the moment of the order on it refuses every
claim of the node. This is how the node knows of it, so that it does not ask in vain, calls no idle hooks and offers
its work to others.
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
    """Why a node ends when nothing runs on it any more."""

    DRAIN = "drain"
    RESTART = "restart"


class Cordon:
    """Cordoned or not, leaving or not."""

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
        self.exit_code = 0
        """What the process should end with, once the node has stopped."""

    @property
    def is_cordoned(self) -> bool:
        """Whether it may start nothing new."""
        return self._scheduler.is_cordoned

    def cordon(self) -> None:
        """Start nothing new."""
        if not self.is_cordoned:
            self._scheduler.cordon()
            self._signals.cordon_changed()

    def uncordon(self) -> None:
        """Start tasks again, and stay; too late if the node stops already."""
        if self._departure_task is not None:
            self._departure_task.cancel()
        self._departure_task = self.departure = None
        if self.is_cordoned:
            self._scheduler.uncordon()
            self._signals.cordon_changed()

    def depart(self, why: Departure) -> None:
        """Start nothing new, and stop the node when nothing runs on it; said twice, the last reason counts."""
        self.departure = why
        self._scheduler.cordon()
        self._signals.cordon_changed()
        if self._departure_task is None:
            self._departure_task = asyncio.get_running_loop().create_task(self._depart(), name="synergon-departure")

    def close(self) -> None:
        """The node stops, for whatever reason."""
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

    def learn(self, nodes: Iterable[NodeRecord], node_id: str) -> None:
        """The node table, as it has just been read. It may be older than what is known here, so it is believed only if
        it says that nothing may start."""
        if any(node.id == node_id and node.is_cordoned for node in nodes):
            self.found_cordoned()

    def found_cordoned(self) -> None:
        """The store says so, and knew it first; there may be more to read."""
        if not self.is_cordoned:
            self.cordon()
            self._sweep.look_now()

    async def check(self, node_id: str) -> None:
        """While it believes that it is cordoned: whether the store says so too. A claim that was under way when the
        order was taken back may have said it too late."""
        if not self.is_cordoned or self.departure is not None:
            return
        row = next((node for node in await self._store.nodes() if node.id == node_id), None)
        if row is not None and not row.is_cordoned:
            self.uncordon()
