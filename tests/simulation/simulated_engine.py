"""A simulated process with a whole engine in it: a worker for some kinds, or a producer that runs nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.simulation.process import LOGGER, Process
from tests.simulation.wire import Wire

from synergon import Engine
from synergon.call import Call
from synergon.errors import StoreUnavailable, TaskDeleted
from synergon.options.settings import Settings
from synergon.task import AnyTask
from synergon.worker import start_node

if TYPE_CHECKING:
    from tests.simulation.network_world import NetworkWorld


class Citizen(Process):
    """Only the ports of its engine are simulated: the store, the clock, the transport and the executor."""

    world: NetworkWorld

    def __init__(
        self, world: NetworkWorld, pid: int, settings: Settings, chances: random.Random, kinds: Mapping[str, AnyTask]
    ) -> None:
        super().__init__(world, pid, settings, chances)
        self._kinds = kinds
        self.waits_for_own: dict[int, float] = {}
        """The tasks that came from here and whose ends somebody here waits for, and since when."""
        self.engine = self._new_engine()

    def _new_engine(self) -> Engine:
        engine = Engine("memory://", transport=Wire(self.world.network, self), logger=LOGGER)
        engine.settings = replace(self.settings, url="memory://")
        engine.kinds.update(self._kinds)
        engine._ports.clock = self.clock
        engine._ports.make_store = lambda _url: self.store
        engine._ports.make_executor = lambda _settings: self.executor
        return engine

    @property
    def kinds(self) -> Mapping[str, AnyTask]:
        return self._kinds

    @property
    def row_id(self) -> str | None:
        peers = self.engine.peers
        return None if peers is None else peers.id

    @property
    def is_healthy(self) -> bool:
        is_ready = self.node is not None or (not self._kinds and self.engine.peers is not None)
        return self.is_alive and not self.is_paused and not self.is_stopping and is_ready

    def new_context(self) -> Context:
        """For something that happens in this process."""
        return self._context.copy()

    async def _begin(self) -> None:
        failures = 0
        while True:
            try:
                await self._connect()
                break
            except StoreUnavailable:
                failures += 1
                await asyncio.sleep(failures)
        self.trouble()

    async def _connect(self) -> None:
        await self.engine.connect()
        listener = self.engine._connection._listener
        assert listener is not None
        listener._process = self.identity  # an engine without a node takes the real process for its own
        if self._kinds:
            self.node = await start_node(self.engine, self.settings, may_exit=True)

    # ------------------------------------------------------------ what people do through it

    async def enqueue(self, calls: Sequence[Call[Any]]) -> int:
        handle = (await self.engine.enqueue(calls))[0]
        if handle.created:
            self.waits_for_own[handle.id] = 0.0
        return handle.id

    async def wait_for(self, task_id: int) -> None:
        self.waits_for.add(task_id)
        if task_id in self.waits_for_own:
            self.waits_for_own[task_id] = self.world.loop.time()
        try:
            record = await self.engine.wait(task_id)
            if not record.state.is_final:
                self.world.fail(f"{self} was told of the end of task {task_id}, which is {record.state}")
        except TaskDeleted:
            pass
        self.waits_for.discard(task_id)

    async def cancel(self, task_id: int) -> None:
        await self.engine.cancel(task_id)

    async def retry(self, task_id: int) -> None:
        await self.engine.retry(task_id)

    async def delete(self, task_id: int) -> None:
        await self.engine.delete(task_id)

    async def reschedule(self, task_id: int, delay_seconds: float) -> None:
        await self.engine.reschedule(task_id, delay=delay_seconds)

    async def set_priority(self, task_id: int, priority: int) -> None:
        await self.engine.set_priority(task_id, priority)

    async def pause(self, queue: str) -> None:
        await self.engine.pause(queue)

    async def resume(self, queue: str) -> None:
        await self.engine.resume(queue)

    # ------------------------------------------------------------ the end

    async def stop(self, grace_seconds: float) -> None:
        self.is_stopping = True
        await self.engine.stop(grace_seconds)
        self.die("has stopped")
