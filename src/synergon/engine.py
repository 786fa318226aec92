"""Engine: composes the parts, and owns the order of start and stop.

Long, because it is the face of the library: most of it is signatures, overloads and what they promise.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import _get_running_loop  # None without one, and no error to catch: enqueue is a hot path
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from synergon.client.events import Observing
from synergon.client.sync_bridge import SyncBridge, elsewhere
from synergon.client.unrunnable_warning import UnrunnableWarning
from synergon.client.waiters import Waiters
from synergon.errors import (
    KindError,
    NotConnected,
    OptionError,
)
from synergon.model.clock import Clock, SystemClock, new_id
from synergon.model.process_identity import this_process
from synergon.node.callbacks.event_feed import Subscriber
from synergon.node.duties.sweep import SHORTEST_SECONDS
from synergon.node.liveness.lease import PARTS
from synergon.node.node import Node
from synergon.node.processes.executors import Executor, LocalExecutor
from synergon.options import settings as engine_settings
from synergon.options.decorators import TaskDecorator
from synergon.options.durations import Duration, seconds
from synergon.options.idle_hook import IdleHook
from synergon.options.middleware_checks import Middleware
from synergon.options.pipelines import refuse_circle, refuse_unknown_upstream
from synergon.options.settings import UNSET, Settings
from synergon.options.sizes import Size
from synergon.options.store_urls import shown
from synergon.peering.default_transport import default_transport
from synergon.peering.http_server import peer_app
from synergon.peering.peers import Peers
from synergon.peering.result_listener import ResultListener
from synergon.peering.signing import Envelope
from synergon.peering.transport import Refused, Transport
from synergon.policies import Resources, Retention
from synergon.providers.provider import Provider
from synergon.providers.registry import Registry
from synergon.stores import open_store
from synergon.stores.base import Store
from synergon.stores.lazy_store import LazyStore
from synergon.task import AnyTask, Call, TaskType, call_by_name
from synergon.worker import Worker, run_until_stopped

if TYPE_CHECKING:
    from starlette.applications import Starlette


class Engine(Observing):
    """A store, the kinds of tasks that are registered, and, while a worker runs, a node.

    Making one connects to nothing. `async with engine:` connects and runs nothing; `async with engine.worker():` runs
    tasks in this process. Each setting has an environment variable of its name (`SYNERGON_CONCURRENCY`, ...).
    """

    def __init__(
        self,
        url: str = UNSET,
        *,
        name: str = UNSET,
        concurrency: int = UNSET,
        queues: Iterable[str] | None = UNSET,
        timeout: Duration | None = UNSET,
        lease: Duration = UNSET,
        sweep: Duration | None = UNSET,
        grace: Duration | None = UNSET,
        retention: Retention = UNSET,
        child_processes: int = UNSET,
        child_tasks: int = UNSET,
        child_memory: Size | None = UNSET,
        resources: Resources = UNSET,
        labels: Iterable[str] = UNSET,
        listen: str | None = UNSET,
        advertise: str | None = UNSET,
        timeout_for: Callable[[str, str | None], Duration | None] | None = None,
        transport: Transport | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        if timeout_for is not None and not callable(timeout_for):
            raise OptionError(f"timeout_for must be a function of a kind and a provider's name, got {timeout_for!r}")
        if logger is not None and not isinstance(logger, logging.Logger | logging.LoggerAdapter):
            raise OptionError(f"logger must be a logging.Logger, got {logger!r}")
        self.settings: Settings = engine_settings.load(
            {
                "url": url,
                "name": name,
                "concurrency": concurrency,
                "queues": queues,
                "timeout": timeout,
                "lease": lease,
                "sweep": sweep,
                "grace": grace,
                "retention": retention,
                "child_processes": child_processes,
                "child_tasks": child_tasks,
                "child_memory": child_memory,
                "resources": resources,
                "labels": labels,
                "listen": listen,
                "advertise": advertise,
            }
        )
        self.timeout_for = timeout_for
        self._transport = transport
        self.logger = logger or logging.getLogger("synergon")
        self.kinds: dict[str, AnyTask] = {}
        self.registry = Registry()
        self.idle_hooks: list[IdleHook] = []
        self.subscribers: list[Subscriber] = []
        self.middlewares: list[Middleware] = []
        self.clock: Clock = SystemClock()
        self.outlook = UnrunnableWarning(
            lambda: self.clock.monotonic(), self.logger, self.settings.lease / PARTS, self.kinds
        )
        self.portal = SyncBridge(self.connect, self.stop)
        self._make_store: Callable[[str], Store] = open_store
        self._make_executor: Callable[[Settings], Executor] = LocalExecutor
        self._make_node: Callable[..., Node] = Node
        self._make_waiters: Callable[..., Waiters] = Waiters
        self._make_transport: Callable[[Settings], Transport | None] = default_transport
        self._make_store(self.settings.url)  # a URL that makes no sense is a mistake here, not later
        self._store: Store | None = None
        self._waiters: Waiters | None = None
        self._node: Node | None = None
        self._peers: Peers | None = None
        self._doorplate: ResultListener | None = None
        self._users = 0
        self._stopping: asyncio.Future[None] | None = None
        self._ordered_stop: asyncio.Task[None] | None = None
        self.is_in_child = False

    def __repr__(self) -> str:
        return f"<Engine {shown(self.settings.url)}>"

    # ------------------------------------------------------------ kinds

    @property
    def task(self) -> TaskDecorator:
        """Register a function as a kind of task; with or without options. It stays a plain callable."""
        return TaskDecorator(self.register, {})

    def register(
        self,
        function: Callable[..., Any],
        options: Mapping[str, Any],
        registered_in: str,
        *,
        provider: Provider | None = None,
        is_command: bool = False,
    ) -> AnyTask:
        """What the decorators do."""
        task_type: AnyTask = TaskType(self, function, options, registered_in, provider=provider, is_command=is_command)
        known = self.kinds.get(task_type.kind)
        if known is not None:
            raise KindError(
                f"two functions under the kind {task_type.kind!r}: {'.'.join(known.location)} and "
                f"{'.'.join(task_type.location)}; give one of them name=..."
            )
        if task_type.policy.downstream_of:
            together = {**self.kinds, task_type.kind: task_type}
            refuse_circle(together)
            if self._node is not None:  # which has asked already whether all of them are there
                refuse_unknown_upstream(together)
        self.registry.add_kind(task_type)
        self.kinds[task_type.kind] = task_type
        return task_type

    def has_lines(self, kind: str) -> bool:
        """Whether tasks of the kind may stand in line; where its code is not at hand, they may."""
        known = self.kinds.get(kind)
        return known is None or known.line is not None

    def call(self, kind: str, /, *args: Any, **kwargs: Any) -> Call[Any]:
        """A call by name, also of a kind whose function is elsewhere (its arguments are then checked where it runs)."""
        known = self.kinds.get(kind)
        return known.call(*args, **kwargs) if known is not None else call_by_name(kind, args, kwargs)

    # ------------------------------------------------------------ life

    async def connect(self) -> Self:
        """Connect to the store. May be called often; each call is undone by one `close`."""
        self.portal.check_is_here()
        if not self.is_in_child:  # a child imports the one module that it needs
            refuse_unknown_upstream(self.kinds)
        self._users += 1
        if self._store is not None:
            return self
        store = self._make_store(self.settings.url)
        if self.is_in_child:
            store = cast("Store", LazyStore(store))
        try:
            await store.open()
        except BaseException:
            self._users -= 1
            raise
        self._store = store
        self._waiters = self._make_waiters(store.get, self.clock, self.settings.sweep or SHORTEST_SECONDS)
        self._meet_peers(store, self._waiters)
        self.portal.attach(asyncio.get_running_loop())
        self.registry.is_declared = False
        await self._declare()
        return self

    def _meet_peers(self, store: Store, waiters: Waiters) -> None:
        transport = self._transport or self._make_transport(self.settings)
        if transport is None:
            return
        settings, clock = self.settings, self.clock
        self._peers = Peers(
            new_id(clock),
            self.kinds,
            store,
            transport,
            clock,
            self.logger,
            refresh_seconds=settings.lease / PARTS,
            on_done=waiters.tell,
            on_any_done=waiters.tell_all,
            on_ended=waiters.tell_followers,
            awaited_here=lambda: waiters.of_others,
            follows_here=lambda: bool(waiters.followers),
        )
        waiters.ask = self._peers.ask_for_ends
        self._peers.look_around()
        self._doorplate = ResultListener(
            self._peers,
            store,
            this_process(),
            clock,
            self.logger,
            name=settings.name,
            lease_seconds=settings.lease,
        )

    def peer_app(self) -> Starlette:
        """An ASGI app that hears peers under `/peer/v1`, to mount in another one; give its address as `advertise` and
        `listen="off"`."""
        return peer_app(self._hear)

    def _hear(self, envelope: Envelope) -> bytes:
        if self._peers is None:
            raise Refused(503, "this engine is not connected")
        return self._peers.receive(envelope)

    async def close(self) -> None:
        """Undo one `connect`; the last one disconnects."""
        self._users = max(self._users - 1, 0)
        if self._users == 0:
            await self.stop()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        """Connect, for code without an event loop."""
        self.portal.call(self._nothing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.portal.close()

    @staticmethod
    async def _nothing() -> None:
        """The portal connects before it calls anything."""

    async def stop(self, grace: Duration | None = UNSET) -> None:
        """Stop the node in order, then disconnect. Idempotent; a second call waits for the first."""
        if self.portal.loop is not None and self.portal.loop.is_running():
            self.portal.check_is_here()
        if self._stopping is None:
            if self._node is not None:
                self._node.shutdown.refuse_from_inside(self._grace(grace))
            self._stopping = asyncio.ensure_future(self._stop(self._grace(grace)))
        try:
            await asyncio.shield(self._stopping)
        finally:
            if self._stopping is not None and self._stopping.done():
                self._stopping = None

    async def _stop(self, grace: float | None) -> None:
        await self.stop_node(grace)
        store, waiters = self._store, self._waiters
        if store is None or waiters is None:
            return
        peers, doorplate = self._peers, self._doorplate
        self._store = self._waiters = self._peers = self._doorplate = None
        self._users = 0
        self.portal.attach(None)
        waiters.close(NotConnected("the engine was closed while somebody waited for a result"))
        if peers is not None and doorplate is not None:
            await doorplate.take_down()
            await peers.close()
        await store.close()

    def _grace(self, grace: Any) -> float | None:
        if grace is UNSET:
            return self.settings.grace
        return None if grace is None else seconds(grace, "grace")

    def worker(
        self,
        *,
        name: str = UNSET,
        concurrency: int = UNSET,
        queues: Iterable[str] | None = UNSET,
        timeout: Duration | None = UNSET,
        lease: Duration = UNSET,
        sweep: Duration | None = UNSET,
        grace: Duration | None = UNSET,
        resources: Resources = UNSET,
        labels: Iterable[str] = UNSET,
        drain: bool = False,
    ) -> Worker:
        """A node in this process, for the time of an `async with`. With `drain` its end waits until nothing that the
        node could run is left."""
        settings = self.settings.changed(
            {
                "name": name,
                "concurrency": concurrency,
                "queues": queues,
                "timeout": timeout,
                "lease": lease,
                "sweep": sweep,
                "grace": grace,
                "resources": resources,
                "labels": labels,
            },
            "worker",
        )
        return Worker(self, settings, drain=drain)

    async def run(self, *, drain: bool = False, **node_options: Any) -> int:
        """Run a node until SIGINT or SIGTERM, `stop()`, an order, or, with `drain`, until nothing is left to do.

        Returns what the process should end with: 0, or 86 if somebody has ordered a restart.
        """
        return await run_until_stopped(self.worker(drain=drain, **node_options))

    def run_sync(self, *, drain: bool = False, **node_options: Any) -> int:
        """`run` for a script. Beside `with engine:` and *_sync calls the node runs on the loop that those use."""
        if self.portal.loop is None:
            return asyncio.run(self.run(drain=drain, **node_options))
        try:
            return self.portal.call(lambda: self.run(drain=drain, **node_options))
        except KeyboardInterrupt:
            self.portal.call(self._stop_node)
            return 0

    async def start_node(self, settings: Settings, *, may_exit: bool = False) -> Node:
        """What `worker()` starts."""
        if self._node is not None:
            raise OptionError("this engine already runs a node; make another Engine for a second one")
        refuse_unknown_upstream(self.kinds)
        await self._declare()
        executor = self._make_executor(settings)
        node = self._make_node(
            self.store,
            self.kinds,
            settings,
            self.clock,
            executor,
            self.logger,
            on_ended=self.waiters.tell,
            peers=self._peers,
            timeout_for=self.timeout_for,
            idle_hooks=self.idle_hooks,
            subscribers=self.subscribers,
            on_stop=self._stop_soon,
            consider=lambda tasks: self.outlook.consider(self.store, tasks),
            may_exit=may_exit,
        )
        self._node = node
        try:
            await node.start()
        except BaseException:
            self._node = None
            raise
        return node

    def _stop_soon(self) -> None:
        """Somebody elsewhere has ordered this node to stop."""
        self._ordered_stop = asyncio.get_running_loop().create_task(self._stop_node())

    async def _stop_node(self) -> None:
        await self.stop_node(self.settings.grace)

    async def stop_node(self, grace: float | None) -> None:
        """What the end of `worker()` stops."""
        node = self._node
        if node is not None:
            await node.stop(grace)
            if self._node is node:
                self._node = None

    @property
    def node(self) -> Node | None:
        """The node that runs in this process, if any."""
        return self._node

    @property
    def peers(self) -> Peers | None:
        """The other engines on this store; None while not connected, or if nobody else could be there."""
        return self._peers

    @property
    def store(self) -> Store:
        """The connected store; NotConnected if there is none, or if it is on another event loop than the caller."""
        return self.store_for(None)

    def store_for(self, loop: asyncio.AbstractEventLoop | None) -> Store:
        """`store`, for a caller that has asked already which event loop runs; None: it has not."""
        if self._store is None:
            raise NotConnected("the engine is not connected; use `async with engine:` around this")
        # A caller without a loop is synchronous code that writes on a connection of its own.
        if loop is not self.portal.loop and _get_running_loop() not in (None, self.portal.loop):
            raise elsewhere()
        return self._store

    @property
    def waiters(self) -> Waiters:
        """Whoever waits for results."""
        if self._waiters is None:
            raise NotConnected("the engine is not connected; use `async with engine:` around this")
        self.portal.check_is_here()
        return self._waiters
