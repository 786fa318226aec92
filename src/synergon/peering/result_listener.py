"""Doorplate: the row in the node table by which an engine that runs nothing can be told of the ends it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from synergon.errors import OptionError, StoreError
from synergon.model.clock import Clock
from synergon.model.nodes import NewNode, ProcessIdentity
from synergon.options.durations import microseconds
from synergon.peering.peers import Peers
from synergon.stores.base import LeaseKeeper, Store
from synergon.version import VERSION

PARTS: Final = 6


class ResultListener:
    """Put up when somebody first waits, taken down at the end. It has no kinds and no slots: nobody takes it for a
    worker. Nothing hangs on its lease but the plate itself, so one that was lost is simply put up again."""

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
        self._is_up = False
        self._is_hopeless = False
        """There is no way to be reached."""

    def put_up(self) -> None:
        """Become reachable, beside everything else."""
        if self._task is None and not self._is_hopeless:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    async def take_down(self) -> None:
        """Be reachable no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._is_up:
            self._peers.say_goodbye()
            with contextlib.suppress(StoreError):  # its lease runs out then
                await self._store.unregister(self._peers.engine_id)

    async def _keep(self) -> None:
        address = await self._address()
        if address is None:
            self._task = None  # whoever waits next tries again, if there is hope
            return
        keeper = await self._store.keeper()
        try:
            while True:
                await self._keep_up(keeper, address)
                await self._clock.sleep(self._lease_seconds / PARTS)
        finally:
            await keeper.close()

    async def _address(self) -> str | None:
        try:
            address = await self._peers.serve()
        except StoreError:
            return None
        except OptionError as error:
            self._logger.warning("results of other processes are found by looking only: %s", error)
            address = None
        self._is_hopeless = address is None
        return address

    async def _keep_up(self, keeper: LeaseKeeper, address: str) -> None:
        try:
            if not (self._is_up and await keeper.renew(self._peers.engine_id, microseconds(self._lease_seconds))):
                await self._register(address)
        except StoreError as error:
            self._logger.debug("results of other processes come by the sweep for now: %s", error)

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
        self._is_up = True
        self._peers.say_hello()
        self._peers.became_reachable()
