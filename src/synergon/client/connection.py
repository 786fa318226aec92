"""The connection of an engine: its store, its waiters for results, its peers, and the node of this process.

A connection belongs to one event loop and one process. Callers on another event loop get NotConnected.
"""

from __future__ import annotations

import asyncio
import logging
import os
from asyncio import _get_running_loop  # None without a loop: an exception would cost more, on a hot path
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from synergon.errors import NotConnected, PermissionDenied
from synergon.model.clock import new_id
from synergon.model.nodes import HEARTBEATS_PER_LEASE
from synergon.model.process_identity import this_process
from synergon.model.tracer import ProducerSpan

if TYPE_CHECKING:
    from synergon.client.ports import Ports
    from synergon.client.results import Waiters
    from synergon.model.attempts import UnfinishedTask
    from synergon.model.schedules import FiredTask
    from synergon.model.tasks import NewTask
    from synergon.model.tracer import Tracer
    from synergon.node.node import Node
    from synergon.node.statistics_writer import StatisticsWriter
    from synergon.options.settings import Settings
    from synergon.peering.peers import Peers
    from synergon.peering.result_listener import ResultListener
    from synergon.peering.signatures import Envelope
    from synergon.peering.transport import Transport
    from synergon.providers.registry import Registry
    from synergon.stores.base import Store
    from synergon.task import AnyTask


class Connection:
    """The connection that the parts of an engine share. The engine opens and closes it."""

    def __init__(
        self,
        kinds: Mapping[str, AnyTask],
        registry: Registry,
        ports: Ports,
        logger: logging.Logger,
    ) -> None:
        self._kinds = kinds
        self._registry = registry
        self._ports = ports
        self._logger = logger
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which the engine is connected. None if it is not connected."""
        self._opening = asyncio.Lock()
        """Held while the connection opens, on `_opening_loop`."""
        self._opening_loop: asyncio.AbstractEventLoop | None = None
        self._process_id = os.getpid()
        self._store: Store | None = None
        self._waiters: Waiters | None = None
        self._listener: ResultListener | None = None
        self.peers: Peers | None = None
        """The other engines on this store. None while the engine is not connected, or if no other process can use the
        store."""
        self.node: Node | None = None
        """The node that runs in this process. None if there is none."""
        self.statistics: StatisticsWriter | None = None
        """Counts what the engine stores and its node does, and writes the statistics. None while the engine is not
        connected."""
        self.tracer: Tracer | None = None
        """Makes spans of what the engine stores and runs. None if it is not traced."""
        self._unfinished: list[Node] = []
        """The stopped nodes whose task functions still run."""
        self._closing: set[asyncio.Task[None]] = set()
        self.is_in_child = False
        """Whether this is a child process. A memory store exists only in its parent."""

    @property
    def is_open(self) -> bool:
        """Whether the store is connected."""
        return self._store is not None

    @property
    def store(self) -> Store:
        """The connected store. Raises NotConnected if the engine is not connected, or is connected on another event
        loop than the caller's."""
        if self._store is None:
            raise _not_connected()
        # A caller without a loop is synchronous code that writes on a connection of its own.
        loop = _get_running_loop()
        if loop is not self.loop and loop is not None:
            raise _elsewhere()
        return self._store

    def producer_span(self, tasks: Sequence[NewTask]) -> ProducerSpan:
        """The span around the write that stores `tasks`. It does nothing if the engine is not traced."""
        return ProducerSpan(tasks) if self.tracer is None or not tasks else self.tracer.producer_span(tasks, "send")

    @property
    def waiters(self) -> Waiters:
        """The waiters for results. Raises NotConnected as `store` does."""
        if self._waiters is None:
            raise _not_connected()
        self.check_is_here()
        return self._waiters

    @property
    def unfinished(self) -> tuple[UnfinishedTask, ...]:
        """The tasks whose functions still run although their node was stopped."""
        return tuple(task for node in self._unfinished for task in node.unfinished)

    def detach_node(self) -> None:
        """Forget the node, which has stopped. If some of its task functions still run, `unfinished` lists them, and the
        node still uses the store."""
        node, self.node = self.node, None
        self._unfinished = [known for known in self._unfinished if known.unfinished]
        if node is not None and node.unfinished:
            self._unfinished.append(node)

    def check_is_here(self) -> None:
        """Raise NotConnected if the engine is connected on another event loop than the running one."""
        self.check_process()
        if self.loop is not None and self.loop is not asyncio.get_running_loop():
            raise _elsewhere()

    def check_process(self) -> None:
        """Raise NotConnected in a process that was forked while the engine was connected."""
        if self.loop is not None and self._process_id != os.getpid():
            raise NotConnected(
                "this engine was connected before os.fork(), and neither its loop nor its connections live in this "
                "process; connect after the fork, or make another Engine here"
            )

    def attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Note the event loop on which the engine is connected. None after it has disconnected."""
        self.loop = loop
        self._process_id = os.getpid()

    @property
    def origin(self) -> str | None:
        """The id under which peers notify this engine of the end of tasks that it enqueued."""
        if self.peers is None:
            return None
        node = self.peers.node
        return self.peers.engine_id if node is None else node.id

    async def open(self, settings: Settings) -> None:
        """Connect to the store, create the peers, and declare the limits and providers, unless that has been done. If a
        step fails, nothing remains open.

        Calls that arrive together share one connection. Raises NotConnected if another event loop opens it.
        """
        async with self._lock_of_this_loop():
            if not self.is_open:
                await self._open(settings)

    def _lock_of_this_loop(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if loop is not self._opening_loop:
            if self._opening.locked() and self._opening_loop is not None and self._opening_loop.is_running():
                raise _elsewhere()
            self._opening_loop, self._opening = loop, asyncio.Lock()
        return self._opening

    async def _open(self, settings: Settings) -> None:
        from synergon.node.duties.sweep import SHORTEST_SECONDS
        from synergon.node.statistics_writer import StatisticsWriter

        transport = self._ports.make_transport(settings)
        store = self._ports.make_store(settings.url)
        store.introduce(f"synergon {settings.name}", self._logger)
        if self.is_in_child:
            from synergon.stores.lazy_store import LazyStore

            store = cast("Store", LazyStore(store))
        await store.open()
        self._store = store
        self.statistics = StatisticsWriter(store, self._ports.clock, settings.lease / HEARTBEATS_PER_LEASE)
        self._waiters = self._ports.make_waiters(store, self._ports.clock, settings.sweep or SHORTEST_SECONDS)
        self.attach(asyncio.get_running_loop())
        if transport is not None:
            self._meet_peers(settings, transport, store, self._waiters)
        self._registry.is_declared = False
        try:
            await self.declare()
        except BaseException:
            await self.close()
            raise

    def _meet_peers(self, settings: Settings, transport: Transport, store: Store, waiters: Waiters) -> None:
        from synergon.peering.peers import Peers
        from synergon.peering.result_listener import ResultListener

        clock = self._ports.clock
        peers = self.peers = Peers(
            new_id(clock),
            self._kinds,
            store,
            transport,
            clock,
            self._logger,
            waiters,
            refresh_seconds=settings.lease / HEARTBEATS_PER_LEASE,
        )
        waiters.peers = peers
        peers.preload_directory()
        self._listener = ResultListener(
            peers, store, this_process(), clock, self._logger, name=settings.name, lease_seconds=settings.lease
        )

    async def close(self) -> None:
        """Disconnect. Callers that wait for results get NotConnected."""
        store, waiters, peers, listener = self._store, self._waiters, self.peers, self._listener
        statistics, self.statistics = self.statistics, None
        if store is None or waiters is None:
            return
        self._store = self._waiters = self.peers = self._listener = None
        ended_with_loop = self.loop is not None and self.loop.is_closed()
        self.attach(None)
        waiters.close(NotConnected("the engine was closed while a caller waited for a result"))
        if peers is not None and listener is not None and not ended_with_loop:
            await listener.stop()
            await peers.close()
        if statistics is not None and not ended_with_loop:
            await statistics.close()
        nodes = [node for node in self._unfinished if node.unfinished]
        if nodes:
            closing = asyncio.get_running_loop().create_task(_close_later(store, nodes), name="synergon-close")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        else:
            await store.close()

    def receive(self, envelope: Envelope) -> bytes:
        """Handle a message of a peer, and return the answer. Raises Rejected if the engine is not connected."""
        from synergon.peering.transport import Rejected

        if self.peers is None:
            raise Rejected(503, "this engine is not connected")
        return self.peers.receive(envelope)

    async def declare(self) -> None:
        """Store the limits and providers that were created since the last declaration."""
        if self.is_in_child or self._registry.is_declared:
            return
        limits, providers = self._registry.declarations()
        if limits or providers:
            try:
                await self.store.declare(limits, providers)
            except PermissionDenied as error:
                # Producers and viewers may not change limits and servers. Workers, which declare them too, may.
                self._logger.warning(
                    "the limits and providers of this code are not those of the store, and stay as they are until a "
                    "worker declares them: %s",
                    error,
                )
        self._registry.is_declared = True

    def note_accepted(self, tasks: Iterable[NewTask | FiredTask]) -> None:
        """Count tasks that this engine has created. A node writes the statistics with its heartbeats; without one,
        they are written after a while."""
        statistics = self.statistics
        if statistics is not None:
            statistics.metrics.note_accepted(tasks)
            if self.node is None:
                statistics.write_later()

    def become_reachable(self) -> None:
        """Make this engine reachable for peers, so that they can notify it of the end of tasks. An engine without a
        node gets a row in the node table for this."""
        if self.node is None and self._listener is not None:
            self._listener.start()


async def _close_later(store: Store, nodes: Sequence[Node]) -> None:
    """Close a store when the last task function that needs it has ended."""
    for node in nodes:
        await node.ended()
    await store.close()


def _elsewhere() -> NotConnected:
    return NotConnected(
        "this engine is connected on another event loop, such as the one that `with engine:` or a *_sync call has "
        "started; use the *_sync twins and run_sync() beside those, or another Engine"
    )


def _not_connected() -> NotConnected:
    return NotConnected("the engine is not connected; use `async with engine:` around this")
