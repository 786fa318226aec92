"""A node's place among the others: its row, its lease, and what becomes of both when the lease is lost.

Promise: who has lost the lease claims nothing and ends what runs, and only then joins again, under a new id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from synergon.errors import StoreError
from synergon.model.clock import Clock, new_id
from synergon.model.nodes import NewNode
from synergon.node.attempts.attempt import Stop
from synergon.node.attempts.runner import Runner
from synergon.node.claims.scheduler import Scheduler
from synergon.node.duties.cordon import Cordon
from synergon.node.duties.operator_actions import OperatorActions
from synergon.node.duties.shutdown import Shutdown
from synergon.node.duty import pause_after
from synergon.node.liveness.lease import Lease
from synergon.node.liveness.status_publisher import StatusPublisher
from synergon.node.liveness.watchdog import Watchdog
from synergon.node.processes.executors import Executor, Keeper
from synergon.node.signals import Signals
from synergon.options.durations import microseconds
from synergon.options.settings import Settings
from synergon.stores.base import Store
from synergon.version import VERSION

ANNOUNCE_SECONDS: Final = 2.0
"""How long a stop waits until the node's row says so; after that it goes on, and the lease goes on trying."""


class Membership:
    """Joins, and joins again; the id is the one that the node has now."""

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
        ending: Shutdown,
        board: StatusPublisher,
        cordon: Cordon,
        operator_actions: OperatorActions,
        signals: Signals,
    ) -> None:
        self.id = ""
        self.address: str | None = None
        """Where its peers reach it."""
        self.lease: Lease | None = None
        self._store = store
        self._kinds = kinds
        self._settings = settings
        self._executor = executor
        self._clock = clock
        self._logger = logger
        self._runner = runner
        self._scheduler = scheduler
        self._ending = ending
        self._board = board
        self._cordon = cordon
        self._operator_actions = operator_actions
        self._signals = signals
        self._loop = asyncio.get_running_loop()
        self._keeper: Keeper | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._is_ending = False

    @property
    def may_start(self) -> bool:
        """Whether what was claimed may begin."""
        return self.lease is not None and not self.lease.is_over

    @property
    def is_lost(self) -> bool:
        """Whether it has no lease, as far as it knows."""
        return self.lease is None or self.lease.is_lost

    def renew_soon(self) -> None:
        """Have the row say at once what the board says."""
        if self.lease is not None:
            self.lease.renew_soon()

    async def join(self) -> None:
        """Become a node under a new id, with a lease of its own."""
        node_id = self.id = new_id(self._clock)
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
                published=self._board.write(),
            )
        )
        self._signals.joined()
        self._scheduler.node_id = self._runner.node_id = node_id
        self.lease = Lease(
            self._store.keeper,
            node_id,
            settings.lease,
            self._clock,
            self._logger,
            asked_at=asked_at,
            on_lost=self._fence,
            # What runs after the node has joined again, under another id, is not this lease's business.
            is_quiet=lambda: self.id != node_id or not self._runner.running,
            exit_process=self._executor.exit_process,
            board=self._board,
        )
        watchdog = Watchdog(self._loop, self._clock, self._logger, lambda: list(self._runner.running.values()))
        self._keeper = self._executor.start_keeper(watchdog.beside(self.lease.keep))

    # ------------------------------------------------------------ the lease is lost

    def _fence(self, node_id: str) -> None:
        """Called from the lease's thread, also while the loop is blocked."""
        self._logger.error("node %s has lost its lease: it stops its work, and joins again under a new id", node_id)
        self._scheduler.is_open = False  # the rest of `close` belongs to the loop
        self._executor.kill_children()
        self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._scheduler.close()
        self._runner.stop_all(Stop.LEASE_LOST)
        if not self._is_ending:
            self._rejoining = self._loop.create_task(self._rejoin())

    async def _rejoin(self) -> None:
        await self._scheduler.settled()
        await self._ending.quiet.comes()
        failures = 0
        while True:
            try:
                # Actions addressed to the old id still apply after the node has joined again.
                await self._operator_actions.obey(self.id)
                await self.join()
                break
            except StoreError as error:
                failures += 1
                if failures == 1:
                    self._logger.warning("the node waits for the store to join again: %s", error)
                await self._clock.sleep(pause_after(failures))
        self._logger.info("joined again as node %s", self.id)
        self._scheduler.reopen()

    # ------------------------------------------------------------ the end

    def announce_stop(self) -> None:
        """Have the row say soon that the node stops: then its death charges nothing to what it runs. From any thread,
        and from a signal handler."""
        if self.lease is not None:
            self.lease.announce_stop()

    async def stop_announced(self) -> None:
        """Return when the row says so, or when the store does not answer for a while."""
        if self.lease is not None and not self.lease.is_lost:
            await asyncio.wait([asyncio.wrap_future(self.lease.stop_announced)], timeout=ANNOUNCE_SECONDS)

    def close(self) -> None:
        """Join no more: that would open the scheduler again."""
        self._is_ending = True
        if self._rejoining is not None:
            self._rejoining.cancel()

    async def resign(self) -> None:
        """Renew the lease no more, and drop the row."""
        if self._keeper is not None:
            await self._keeper.stop()
        try:
            await self._store.unregister(self.id)
        except StoreError as error:
            self._logger.warning("the node's row could not be removed: %s", error)
