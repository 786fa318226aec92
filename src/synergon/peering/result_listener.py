"""ResultListener: keeps a row in the node table for an engine without a node, so that peers can notify it of results.

The row has no kinds and no slots, so peers never offer it tasks. If the lease is lost, the listener registers again;
nothing else depends on the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from synergon.errors import OptionError, StoreError
from synergon.model.clock import Clock
from synergon.model.nodes import HEARTBEATS_PER_LEASE, NewNode, ProcessIdentity
from synergon.options.durations import microseconds
from synergon.peering.peers import Peers
from synergon.stores.base import LeaseKeeper, Store
from synergon.version import VERSION


class ResultListener:
    """Registers the engine when it first waits for a result, renews its lease, and unregisters it when the engine
    closes."""

    def __init__(
        self,
        peers: Peers,
        store: Store,
        process: ProcessIdentity,
        clock: Clock,
        logger: logging.Logger,
        *,
        name: str,
        lease_seconds: float,
    ) -> None:
        self._peers = peers
        self._store = store
        self._process = process
        self._clock = clock
        self._logger = logger
        self._name = name
        self._lease_seconds = lease_seconds
        self._task: asyncio.Task[None] | None = None
        self._is_registered = False
        self._is_unreachable = False
        """Whether peers can never reach this engine, so that `start` does nothing."""

    def start(self) -> None:
        """Register in the background. Idempotent."""
        if self._task is None and not self._is_unreachable:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Announce to the peers that this engine leaves, and delete its row."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._is_registered:
            self._peers.announce_leave()
            with contextlib.suppress(StoreError):  # the lease expires instead
                await self._store.unregister(self._peers.engine_id)

    async def _run(self) -> None:
        address = await self._serve()
        if address is None:
            self._task = None  # the next `start` tries again unless the engine is unreachable for good
            return
        keeper = await self._store.keeper()
        try:
            while True:
                await self._renew(keeper, address)
                await self._clock.sleep(self._lease_seconds / HEARTBEATS_PER_LEASE)
        finally:
            await keeper.close()

    async def _serve(self) -> str | None:
        try:
            address = await self._peers.serve()
        except StoreError:
            return None
        except OptionError as error:
            self._logger.warning("cannot receive result notifications; polling instead: %s", error)
            address = None
        self._is_unreachable = address is None
        return address

    async def _renew(self, keeper: LeaseKeeper, address: str) -> None:
        try:
            lease = microseconds(self._lease_seconds)
            if not (self._is_registered and await keeper.renew(self._peers.engine_id, lease)):
                await self._register(address)
        except StoreError as error:
            self._logger.debug("cannot register for result notifications, polling until the next try: %s", error)

    async def _register(self, address: str) -> None:
        await self._store.register(
            NewNode(
                id=self._peers.engine_id,
                name=self._name,
                process=self._process,
                kinds=(),
                queues=(),
                concurrency=0,
                lease=microseconds(self._lease_seconds),
                version=VERSION,
                address=address,
            )
        )
        self._is_registered = True
        self._peers.announce_join()
        self._peers.recheck_awaited()
