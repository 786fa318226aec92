"""The part of an engine that owns the order of start and stop: connect, stop the node, disconnect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from synergon.options.pipelines import reject_unknown_upstream

if TYPE_CHECKING:
    from synergon.engine import Engine


class Lifecycle:
    """Connects an engine for its first user, and disconnects it after its last one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection = engine._connection
        self._users = 0
        """The number of `connect` calls without a matching `close`."""
        self.companions: list[Engine] = []
        """Engines with connections of their own, for the web apps of this one. They stop with it."""
        self._stopping: asyncio.Future[None] | None = None
        self._requested_stop: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Connect to the store, unless the engine is connected."""
        self._connection.check_is_here()
        if not self._connection.is_in_child:  # a child imports the one module that it needs
            reject_unknown_upstream(self._engine.kinds)
        self._users += 1
        try:
            await self._connection.open(self._engine.settings)
        except BaseException:
            self._users -= 1
            raise

    async def close(self) -> None:
        """Undo one `connect`. The last one stops the engine."""
        self._users = max(self._users - 1, 0)
        if self._users == 0:
            await self._engine.stop()

    async def stop(self, grace: float | None) -> None:
        """Stop the node in order, then disconnect. A second call waits for the first."""
        if self._connection.loop is not None and self._connection.loop.is_running():
            self._connection.check_is_here()
        if self._stopping is None:
            if self._connection.node is not None:
                self._connection.node.shutdown.reject_from_inside(grace)
            self._stopping = asyncio.ensure_future(self._stop(grace))
        try:
            await asyncio.shield(self._stopping)
        finally:
            if self._stopping is not None and self._stopping.done():
                self._stopping = None

    async def _stop(self, grace: float | None) -> None:
        await self._engine._stop_node(grace)
        companions, self.companions = self.companions, []
        for companion in companions:
            await companion.stop()
        if self._connection.is_open:
            self._users = 0
            await self._connection.close()

    def stop_node_soon(self) -> None:
        """Start to stop the node, with the grace of the engine."""
        stop = self._engine._stop_node(self._engine.settings.grace)
        self._requested_stop = asyncio.get_running_loop().create_task(stop)

    async def stop_node(self, grace: float | None) -> None:
        """Stop the node, if there is one."""
        node = self._connection.node
        if node is not None:
            await node.stop(grace)
            if self._connection.node is node:
                self._connection.detach_node()
