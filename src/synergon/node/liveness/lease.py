"""Renews the lease of a node, and fences the node when it cannot.

While the node runs tasks its row in the store has a valid lease, and the node stops *before* others may take over. The
lease is renewed every sixth of its length, on a thread that task functions cannot block. The node is fenced if only a
sixth of the lease is left (if the lease is short: one second, but at most a third): it claims nothing, its task
functions are cancelled and its child processes are killed. If a task function still runs when the lease expires, the
process exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
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
"""How many beats one renewal may take, so that a stuck connection leaves time for further attempts."""
STATUS_CHECK_SECONDS: Final = 0.01
"""How often, in seconds, to check whether the event loop has updated the status."""
STATUS_WAIT_PART: Final = 50
"""A renewal waits for a new status of the node for the time between two renewals, divided by this number. After that,
the previous status stays published."""
EXIT_SECONDS: Final = 1.0
"""How many seconds task functions get to end before a short lease expires, or if the lease is over already, because the
process was suspended or others have declared it dead."""
LONGEST_EXIT_PART: Final = 3
"""Task functions get at most the length of the lease, divided by this number, to end. So even a very short lease can be
renewed."""

EXIT_CODE: Final = 75
"""EX_TEMPFAIL: the supervisor should start the process again."""


class LeaseOwner(Protocol):
    """The part of the node's membership that the lease uses. The methods are called on the thread of the lease."""

    def lease_lost(self, node_id: str) -> None:
        """Fence the node."""

    def is_idle(self, node_id: str) -> bool:
        """Whether no attempt runs that belongs to this node id."""

    def is_deserted(self) -> bool:
        """Whether the node's event loop is closed and no thread runs a task function, so that the lease is not
        needed."""


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
        """The version of the status that was sent last. The first one was stored with the node's row."""
        self.trouble: str | None = None
        """Why the last renewal has failed. None if it has not."""
        self._asked_at = asked_at
        self._valid_until = asked_at + seconds
        self.is_lost: bool = False

    @property
    def beat_seconds(self) -> float:
        """The time between two renewals."""
        return self._seconds / HEARTBEATS_PER_LEASE

    @property
    def age_seconds(self) -> float:
        """How many seconds ago the last confirmed renewal was requested. Safe from any thread."""
        return self._clock.monotonic() - (self._valid_until - self._seconds)

    @property
    def _fenced_at(self) -> float:
        """The moment at which the node is fenced unless it renews its lease before. The rest of the lease is the time
        that task functions have to end."""
        exit_seconds = min(EXIT_SECONDS, self._seconds / LONGEST_EXIT_PART)
        return self._valid_until - max(self.beat_seconds, exit_seconds)

    @property
    def is_over(self) -> bool:
        """Whether other nodes may have taken over. Uses the clock, so it is True at once after a suspension of the
        process."""
        return self.is_lost or self._clock.monotonic() >= self._valid_until

    async def run(self, end: asyncio.Event) -> None:
        """Renew the lease until `end` is set or the lease is lost. The watchdog runs meanwhile."""
        keeper = await self._store.keeper()
        self._loop = asyncio.get_running_loop()
        beside = [self._loop.create_task(self._wake_at(end))]
        if self._watchdog is not None:
            beside.append(self._loop.create_task(self._watchdog.watch(end)))
        try:
            while not end.is_set():
                if self._owner.is_deserted():
                    self._logger.warning("the event loop of node %s is closed; its lease expires", self._node_id)
                    return
                if not await self._renew(keeper):
                    await self._lose(end)
                    return
                await self._wait_for_beat()
        finally:
            for task in beside:
                task.cancel()
            await keeper.close()

    def renew_soon(self) -> None:
        """Renew the lease now, to publish a new status. Thread-safe."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # `run` has ended
                self._loop.call_soon_threadsafe(self._is_renewal_wanted.set)

    async def _wake_at(self, end: asyncio.Event) -> None:
        await end.wait()
        self._is_renewal_wanted.set()

    async def _wait_for_beat(self) -> None:
        now = self._clock.monotonic()
        next_beat = min(self._asked_at + self.beat_seconds, self._fenced_at)
        pause = max(next_beat - now, 0.01)
        try:
            async with asyncio.timeout(pause):
                await self._is_renewal_wanted.wait()
        except TimeoutError:
            return
        finally:
            self._is_renewal_wanted.clear()

    async def _renew(self, keeper: LeaseKeeper) -> bool:
        """Renew the lease once. Returns False if it is lost, or so close to its end that the node must be fenced."""
        published = await self._new_status()
        self._asked_at = asked_at = self._clock.monotonic()
        patience = self._fenced_at - asked_at
        if patience <= 0:
            return False
        try:
            async with asyncio.timeout(min(patience, TRY_BEATS * self.beat_seconds)):
                is_known = await keeper.renew(self._node_id, microseconds(self._seconds), published)
        except (StoreError, TimeoutError) as error:
            level = logging.WARNING if self.trouble is None else logging.DEBUG  # an outage is logged once
            self.trouble = str(error) or "the store did not answer in time"
            self._logger.log(level, "cannot renew the lease: %s", self.trouble)
            return self._clock.monotonic() < self._fenced_at
        if not is_known:
            self._valid_until = min(self._valid_until, self._clock.monotonic())
            return False
        self.trouble = None
        # Counted from before the request: the store cannot have counted from an earlier time.
        self._valid_until = asked_at + self._seconds
        return self._clock.monotonic() < self._valid_until

    async def _new_status(self) -> bytes | None:
        """The node's current status. None if the event loop does not update it within a short wait: the store notes
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
        now = self._clock.monotonic()
        exit_at = self._valid_until if self._valid_until > now else now + EXIT_SECONDS
        while self._clock.monotonic() < exit_at and not end.is_set():
            if self._owner.is_idle(self._node_id):
                return
            await self._clock.sleep(min(0.02, exit_at - self._clock.monotonic()))
        if not self._owner.is_idle(self._node_id) and not end.is_set():
            self._logger.critical("a task function did not end before the lease expired; this process exits")
            self._executor.exit_process(EXIT_CODE)
