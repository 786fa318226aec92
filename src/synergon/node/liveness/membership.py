"""The membership of a node: its row and lease, and joining again after the lease was lost.

A node that has lost its lease claims nothing, stops its running attempts, and only then joins again under a new id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from synergon.errors import StoreError
from synergon.model.clock import Clock, new_id
from synergon.model.nodes import NewNode
from synergon.node.attempts.attempt import Stop
from synergon.node.attempts.runner import Runner
from synergon.node.claims.scheduler import Scheduler
from synergon.node.duties.cordon import Cordon
from synergon.node.duties.operator_actions import OperatorActions
from synergon.node.duty import pause_after
from synergon.node.liveness.lease import Lease
from synergon.node.liveness.status import StatusPublisher
from synergon.node.liveness.watchdog import Watchdog
from synergon.node.processes.executors import BackgroundRun, Executor
from synergon.node.signals import Signals
from synergon.options.durations import microseconds
from synergon.options.settings import Settings
from synergon.stores.base import Store
from synergon.version import VERSION


class Membership:
    """Registers the node, and registers it again after its lease was lost. `id` is the node's current id."""

    def __init__(
        self,
        store: Store,
        kinds: Iterable[str],
        settings: Settings,
        executor: Executor,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        *,
        runner: Runner,
        scheduler: Scheduler,
        status: StatusPublisher,
        cordon: Cordon,
        operator_actions: OperatorActions,
        signals: Signals,
    ) -> None:
        self.id: str = ""
        self.address: str | None = None
        """The address to which peers send. None if the node has none."""
        self.lease: Lease | None = None
        self.watchdog: Watchdog | None = None
        self._store = store
        self._kinds = kinds
        self._settings = settings
        self._executor = executor
        self._clock = clock
        self._logger = logger
        self._runner = runner
        self._scheduler = scheduler
        self._status = status
        self._cordon = cordon
        self._operator_actions = operator_actions
        self._signals = signals
        self._loop = asyncio.get_running_loop()
        self._keeper: BackgroundRun | None = None
        self._rejoin_task: asyncio.Task[None] | None = None
        self._is_closed = False

    def renew_soon(self) -> None:
        """Renew the lease now, which publishes the current status."""
        if self.lease is not None:
            self.lease.renew_soon()

    async def join(self, node_id: str | None = None) -> None:
        """Register under `node_id`, or under a new id if that is None, and start to renew the lease."""
        node_id = self.id = node_id or new_id(self._clock)
        settings = self._settings
        asked_at = self._clock.monotonic()  # the store cannot count the lease from earlier
        await self._store.register(
            NewNode(
                id=node_id,
                name=settings.name,
                process=self._executor.identity,
                kinds=tuple(sorted(self._kinds)),
                queues=tuple(sorted(settings.queues)) if settings.queues is not None else None,
                concurrency=settings.concurrency,
                lease=microseconds(settings.lease),
                version=VERSION,
                address=self.address,
                is_cordoned=self._cordon.is_cordoned,
                published=self._status.update(),
            )
        )
        self._signals.joined()
        self._scheduler.node_id = self._runner.node_id = node_id
        self.watchdog = Watchdog(self._loop, self._clock, self._logger, self._runner.running)
        self.lease = Lease(
            self,
            self._store,
            self._executor,
            node_id,
            settings.lease,
            self._clock,
            self._logger,
            asked_at=asked_at,
            status=self._status,
            watchdog=self.watchdog,
        )
        self._keeper = self._executor.start_in_background(self.lease)

    # ------------------------------------------------------------ the lease is lost

    def is_idle(self, node_id: str) -> bool:
        """Whether no attempt runs that belongs to this id. After the node has joined again, all running attempts belong
        to the new id."""
        return self.id != node_id or not self._runner.running or self.is_deserted()

    def is_deserted(self) -> bool:
        """Whether the event loop is closed and no thread runs a task function. Called on the thread of the lease."""
        return self._loop.is_closed() and all(attempt.thread is None for attempt in list(self._runner.running.values()))

    def lease_lost(self, node_id: str) -> None:
        """Stop claiming, kill the child processes, and join again. Called on the thread of the lease, even while the
        event loop is blocked."""
        self._logger.error("node %s has lost its lease; it stops its tasks and joins again under a new id", node_id)
        self._scheduler.fence()
        self._executor.kill_children()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the node was stopped, and a thread goes on
            self._loop.call_soon_threadsafe(self._stop_and_rejoin)

    def _stop_and_rejoin(self) -> None:
        self._scheduler.close()
        self._runner.stop_all(Stop.LEASE_LOST)
        if not self._is_closed:
            self._rejoin_task = self._loop.create_task(self._rejoin())

    async def _rejoin(self) -> None:
        await self._scheduler.wait_until_idle()
        await self._runner.is_idle.wait()
        failures = 0
        while True:
            try:
                # Actions addressed to the old id still apply after the node has joined again.
                await self._operator_actions.carry_out_pending(self.id)
                await self.join()
                break
            except StoreError as error:
                failures += 1
                if failures == 1:
                    self._logger.warning("cannot join again yet; retrying until the store is available: %s", error)
                await self._clock.sleep(pause_after(failures))
        self._logger.info("joined again as node %s", self.id)
        self._scheduler.reopen()

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Prevent a rejoin, which would reopen the scheduler."""
        self._is_closed = True
        if self._rejoin_task is not None:
            self._rejoin_task.cancel()

    async def leave(self) -> None:
        """Stop renewing the lease, and delete the node's row."""
        if self._keeper is not None:
            await self._keeper.stop()
        try:
            await self._store.unregister(self.id)
        except StoreError as error:
            self._logger.warning("cannot remove the row of node %s; its lease expires instead: %s", self.id, error)
