"""ResultListener: registers an engine without a node, so that peers can tell it of the ends it waits for."""

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
    """Keeps a row in the node table from the first wait until the engine is closed.

    The row has no kinds and no slots, so no peer takes it for a worker. Nothing else depends on its lease: a row that
    was lost is registered again.
    """

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
        """Peers have no way to reach this engine."""

    def start(self) -> None:
        """Become reachable, in a task of its own."""
        if self._task is None and not self._is_unreachable:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Stop listening, and remove the row."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._is_registered:
            self._peers.say_goodbye()
            with contextlib.suppress(StoreError):  # its lease runs out then
                await self._store.unregister(self._peers.engine_id)

    async def _keep(self) -> None:
        address = await self._address()
        if address is None:
            self._task = None  # the next wait tries again, unless it cannot be reached at all
            return
        keeper = await self._store.keeper()
        try:
            while True:
                await self._keep_up(keeper, address)
                await self._clock.sleep(self._lease_seconds / HEARTBEATS_PER_LEASE)
        finally:
            await keeper.close()

    async def _address(self) -> str | None:
        try:
            address = await self._peers.serve()
        except StoreError:
            return None
        except OptionError as error:
            self._logger.warning("cannot receive result notifications; polling instead: %s", error)
            address = None
        self._is_unreachable = address is None
        return address

    async def _keep_up(self, keeper: LeaseKeeper, address: str) -> None:
        try:
            if not (
                self._is_registered and await keeper.renew(self._peers.engine_id, microseconds(self._lease_seconds))
            ):
                await self._register(address)
        except StoreError as error:
            self._logger.debug(
                "cannot keep the row for result notifications; the sweep finds results for now: %s", error
            )

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
        self._peers.say_hello()
        self._peers.became_reachable()
