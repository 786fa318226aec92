"""Renews the lease of a node, and fences the node when it cannot.

While the node runs tasks its row in the store has a valid lease, and the node stops *before* others may take over. The
lease is renewed every sixth of its length, on a thread that task functions cannot block. If only a sixth is left
without a renewal the node is fenced: it claims nothing, its task functions are cancelled and its child processes are
killed. If a task function still runs when the lease expires, the process exits.

When the node is told to stop, the next renewal follows at once and marks its row as stopping; later renewals repeat
this until one has reached the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import Future
from typing import Final, Protocol

from synergon.errors import StoreError
from synergon.model.clock import Clock
from synergon.model.nodes import HEARTBEATS_PER_LEASE
from synergon.node.liveness.status import StatusPublisher
from synergon.node.liveness.watchdog import Watchdog
from synergon.node.processes.executors import Executor
from synergon.options.durations import microseconds
from synergon.stores.base import LeaseKeeper, Store

TRY_BEATS: Final = 2
"""How many beats one renewal may take, so that a single stuck connection leaves time for further tries."""
STATUS_CHECK_SECONDS: Final = 0.01
"""How often to check whether the event loop has updated the status."""
STATUS_WAIT_PART: Final = 50
"""The wait for the status is a beat divided by this; after that the previous status stays published and ages."""
MIN_EXIT_SECONDS: Final = 1.0
"""Task functions get at least this long to end, even if the process was suspended until after its lease."""

EXIT_CODE: Final = 75
"""EX_TEMPFAIL: the supervisor should start the process again."""


class LeaseOwner(Protocol):
    """The node's membership, as the lease needs it; called on the lease's thread."""

    def lease_lost(self, node_id: str) -> None:
        """Fence the node."""

    def is_idle(self, node_id: str) -> bool:
        """Whether no attempt of this node id runs."""


class Lease:
    """Renews the lease of one node, on a thread of its own."""

    def __init__(
        self,
        owner: LeaseOwner,
        store: Store,
        executor: Executor,
        node_id: str,
        seconds: float,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        *,
        asked_at: float,
        status: StatusPublisher | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._owner = owner
        self._store = store
        self._executor = executor
        self._watchdog = watchdog
        self._node_id = node_id
        self._seconds = seconds
        self._clock = clock
        self._logger = logger
        self._status = status
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_renewal_wanted = asyncio.Event()
        self._stored_version = 0 if status is None else status.version
        """The version of the status that the store has; the first one was stored with the node's row."""
        self._asked_at = asked_at
        self._valid_until = asked_at + seconds
        self.is_lost = False
        self._is_stopping = False
        self.stop_announced: Future[None] = Future()
        """Done when the row says that the node is stopping; any thread may wait for it."""

    @property
    def beat_seconds(self) -> float:
        """How often the lease is renewed."""
        return self._seconds / HEARTBEATS_PER_LEASE

    @property
    def is_over(self) -> bool:
        """Whether others may have taken over. True at once after a suspension of the process, before `run` notices."""
        return self.is_lost or self._clock.monotonic() >= self._valid_until

    async def run(self, end: asyncio.Event) -> None:
        """Renew until `end` is set or the lease is lost; the watchdog watches meanwhile."""
        keeper = await self._store.keeper()
        self._loop = asyncio.get_running_loop()
        beside = [self._loop.create_task(self._wake_at(end))]
        if self._watchdog is not None:
            beside.append(self._loop.create_task(self._watchdog.watch(end)))
        try:
            while not end.is_set():
                if not await self._renew(keeper):
                    await self._lose(end)
                    return
                await self._wait_for_beat()
        finally:
            for task in beside:
                task.cancel()
            await keeper.close()

    def renew_soon(self) -> None:
        """Renew before the next beat, to publish a new status. Thread-safe."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # `keep` has ended
                self._loop.call_soon_threadsafe(self._is_renewal_wanted.set)

    def announce_stop(self) -> None:
        """Mark the row as stopping. Safe from any thread and from a signal handler."""
        self._is_stopping = True
        self.renew_soon()

    async def _wake_at(self, end: asyncio.Event) -> None:
        await end.wait()
        self._is_renewal_wanted.set()

    async def _wait_for_beat(self) -> None:
        now = self._clock.monotonic()
        next_beat = min(self._asked_at + self.beat_seconds, self._valid_until - self.beat_seconds)
        pause = max(next_beat - now, 0.01)
        try:
            async with asyncio.timeout(pause):
                await self._is_renewal_wanted.wait()
        except TimeoutError:
            return
        finally:
            self._is_renewal_wanted.clear()

    async def _renew(self, keeper: LeaseKeeper) -> bool:
        """Renew once. False if the lease is lost, or so close to its end that the node must be fenced."""
        published = await self._new_status()
        self._asked_at = asked_at = self._clock.monotonic()
        patience = self._valid_until - self.beat_seconds - asked_at
        if patience <= 0:  # the last beat belongs to the task functions, which must end before the lease does
            return False
        is_stopping = self._is_stopping
        try:
            async with asyncio.timeout(min(patience, TRY_BEATS * self.beat_seconds)):
                is_known = await keeper.renew(
                    self._node_id, microseconds(self._seconds), published, is_stopping=is_stopping
                )
        except (StoreError, TimeoutError) as error:
            self._logger.warning("cannot renew the lease: %s", str(error) or "the store did not answer in time")
            return self._clock.monotonic() < self._valid_until - self.beat_seconds
        if not is_known:
            return False
        if is_stopping and not self.stop_announced.done():
            self.stop_announced.set_result(None)
        # Counted from before the request: the store cannot have counted from an earlier time.
        self._valid_until = asked_at + self._seconds
        return self._clock.monotonic() < self._valid_until

    async def _new_status(self) -> bytes | None:
        """The node's current status, or None if the event loop does not update it within a short wait. The store notes
        when it received a status, so an old one must not be sent again."""
        status = self._status
        if status is None:
            return None
        status.request_update()
        patience_ends = self._clock.monotonic() + self.beat_seconds / STATUS_WAIT_PART
        await self._clock.sleep(STATUS_CHECK_SECONDS)
        while status.version == self._stored_version and self._clock.monotonic() < patience_ends:
            await self._clock.sleep(STATUS_CHECK_SECONDS)
        if status.version == self._stored_version:
            return None
        self._stored_version = status.version
        return status.latest

    async def _lose(self, end: asyncio.Event) -> None:
        self.is_lost = True
        self._owner.lease_lost(self._node_id)
        exit_at = max(self._valid_until, self._clock.monotonic() + MIN_EXIT_SECONDS)
        while self._clock.monotonic() < exit_at and not end.is_set():
            if self._owner.is_idle(self._node_id):
                return
            await self._clock.sleep(min(0.02, exit_at - self._clock.monotonic()))
        if not self._owner.is_idle(self._node_id) and not end.is_set():
            self._logger.critical("a task function did not end before the lease expired; this process exits")
            self._executor.exit_process(EXIT_CODE)
