"""The engine: the object that a program uses. It composes the parts in `client/`.

Long, because it is the public interface: what users can call stands in one place, with its guarantees. The parts do the
work. To cut this class into mixins would only spread the list over several files.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from msgspec import UNSET as NOT_GIVEN
from msgspec import UnsetType

from synergon.async_calls import must_await, sync
from synergon.call import Call, call_by_name
from synergon.client import bulk
from synergon.client.announcer import Announcer
from synergon.client.bulk import OnProgress
from synergon.client.call_lists import listed_calls
from synergon.client.connection import Connection
from synergon.client.control import Control
from synergon.client.cooperative import made_in_chunks
from synergon.client.enqueuer import Enqueuer
from synergon.client.events import Events, check_subscriber
from synergon.client.flows import Flows, Groups
from synergon.client.lifecycle import Lifecycle
from synergon.client.operations import Operations, check_due, check_page_limit, check_why
from synergon.client.ports import Ports
from synergon.client.results import Results
from synergon.client.schedule_declarations import ScheduleDeclarations
from synergon.client.schedules import Schedules
from synergon.client.sync_bridge import SyncBridge
from synergon.client.unrunnable_warning import UnrunnableWarning
from synergon.errors import ConfigurationError, KindError, OptionError
from synergon.flow import Flow, Step
from synergon.group import Group
from synergon.handle import Handle
from synergon.model.clock import Clock
from synergon.model.cluster_status import ClusterStatus
from synergon.model.events import Event
from synergon.model.lifecycle import State
from synergon.model.nodes import HEARTBEATS_PER_LEASE
from synergon.model.printable import printing
from synergon.model.task_records import BulkFilters, Counts
from synergon.model.task_statistics import Statistics
from synergon.options import settings as engine_settings
from synergon.options.decorators import TaskDecorator
from synergon.options.durations import Duration, seconds
from synergon.options.idle_hook import IdleHook, WhenIdle, registrar
from synergon.options.lifespans import ProcessLifespan, WorkerLifespan, process_lifespan, worker_lifespan
from synergon.options.middleware_checks import Middleware, check_middleware
from synergon.options.options import check_limit, check_limit_name, check_priority, check_rate
from synergon.options.pipelines import reject_circle
from synergon.options.settings import UNSET, Settings
from synergon.options.sizes import Size
from synergon.options.store_urls import shown
from synergon.policies import Health, Rate, Resources, Retention
from synergon.providers.provider import DEFAULT_HEALTH, Provider, Servers
from synergon.providers.registry import Registry
from synergon.task import AnyTask, TaskType

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from synergon.client.results import Waiters
    from synergon.explain.explanation import Explanation
    from synergon.model.attempts import UnfinishedTask
    from synergon.model.limits import LimitRecord, ServerRecord
    from synergon.model.nodes import NodeRecord
    from synergon.model.operator_actions import AuditRecord
    from synergon.model.schedules import NewSchedule
    from synergon.model.task_records import QueueRecord, TaskFilters, TaskPage, TaskRecord
    from synergon.node.callbacks.event_feed import ServerSubscriber, Subscriber
    from synergon.node.node import Node
    from synergon.peering.asgi_app import PeerApp
    from synergon.peering.peers import Peers
    from synergon.peering.transport import Transport
    from synergon.stores.base import Store
    from synergon.web.access import Auth
    from synergon.worker import Worker

KEEP_ALL: Final = Retention(succeeded=None, failed=None, cancelled=None)

Around = TypeVar("Around", bound=Middleware)
Listener = TypeVar("Listener", bound="Subscriber")
ServerListener = TypeVar("ServerListener", bound="ServerSubscriber")
Lifespan = TypeVar("Lifespan", bound=WorkerLifespan)
ChildLifespan = TypeVar("ChildLifespan", bound=ProcessLifespan)
Value = TypeVar("Value")


class Engine(ScheduleDeclarations):
    """A store, the registered kinds of tasks and, while a worker runs, a node.

    Creating an engine connects to nothing. `async with engine:` connects and runs nothing; `async with
    engine.worker():` runs tasks in this process. Each setting has an environment variable of its name
    (`SYNERGON_CONCURRENCY`, ...).
    """

    _name_in_code: Final = "engine"
    """The name of an engine in messages."""

    def __init__(
        self,
        url: str = UNSET,
        *,
        name: str = UNSET,
        concurrency: int = UNSET,
        threads: int = UNSET,
        queues: Iterable[str] | Mapping[str, int | None] | None = UNSET,
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
        health_listen: str | None = UNSET,
        imports: Iterable[str] = UNSET,
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
                "threads": threads,
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
                "health_listen": health_listen,
                "imports": imports,
            }
        )
        self.timeout_for = timeout_for
        self.logger: Final = logger or logging.getLogger("synergon")
        printing(self.logger)
        self.kinds: dict[str, AnyTask] = {}
        self._registry: Final = Registry()
        self.idle_hooks: list[IdleHook] = []
        self._declared_schedules: dict[str, NewSchedule] = {}
        self._subscribers: list[Subscriber] = []
        self._server_subscribers: list[ServerSubscriber] = []
        self._middlewares: list[Middleware] = []
        self._lifespans: list[Callable[[], AbstractAsyncContextManager[Any]]] = []
        self._process_lifespans: list[Callable[[], AbstractContextManager[Any]]] = []
        self._ports: Ports = Ports()
        if transport is not None:
            self._ports.make_transport = lambda _settings: transport
        self._ports.make_store(self.settings.url)  # a URL that makes no sense is a mistake here, not later
        self._renew_parts()

    def _renew_parts(self) -> None:
        """Make the parts that belong to one connection. `testing` calls this again for another store."""
        refresh_seconds = self.settings.lease / HEARTBEATS_PER_LEASE
        self._connection: Connection = Connection(self.kinds, self._registry, self._ports, self.logger)
        self._lifecycle: Lifecycle = Lifecycle(self)
        self.sync_bridge: SyncBridge = SyncBridge(self, self._connection)
        self._announcer: Announcer = Announcer(self._connection, self.kinds)
        self._unrunnable_warning: UnrunnableWarning = UnrunnableWarning(
            self._ports, self.logger, refresh_seconds, self.kinds
        )
        self._enqueuer: Enqueuer = Enqueuer(
            self._connection, self._announcer, self._registry, self._unrunnable_warning, self.sync_bridge
        )
        self._operations: Operations = Operations(self._connection, self._announcer)
        self._bulk: bulk.Bulk = bulk.Bulk(self._connection, self._announcer)
        self._control: Control = Control(self._connection, self._announcer, self._operations)
        self._results: Results = Results(self._connection, self.kinds)
        self._events = Events(self._connection, self.logger)
        self.flows: Flows = Flows(self)
        self.groups: Groups = Groups(self)
        self.schedules: Schedules = Schedules(self)

    def __repr__(self) -> str:
        return f"<Engine {shown(self.settings.url)}>"

    # ------------------------------------------------------------ kinds

    @property
    def task(self) -> TaskDecorator:
        """The decorator that registers a function as a kind, with or without options. The function remains callable."""
        return TaskDecorator(self, {})

    def _register(
        self,
        function: Callable[..., Any],
        options: Mapping[str, Any],
        registered_in: str,
        *,
        provider: Provider | None = None,
        is_command: bool = False,
    ) -> AnyTask:
        """Register a function as a kind, as the decorators do. Raises KindError if the kind exists, or the worker of
        this engine runs already."""
        task_type: AnyTask = TaskType(self, function, options, registered_in, provider=provider, is_command=is_command)
        known = self.kinds.get(task_type.kind)
        if known is not None:
            raise KindError(
                f"two functions under the kind {task_type.kind!r}: {'.'.join(known.location)} and "
                f"{'.'.join(task_type.location)}; give one of them name=..."
            )
        if self._node is not None:
            raise KindError(
                f"the worker of this engine runs already and would never run the kind {task_type.kind!r}; register all "
                "kinds before it starts"
            )
        if task_type.policy.downstream_of:
            together = {**self.kinds, task_type.kind: task_type}
            reject_circle(together)
        self._registry.add_kind(task_type)
        self.kinds[task_type.kind] = task_type
        return task_type

    def import_modules(self, names: Iterable[str] = ()) -> None:
        """Import the modules of the setting `imports`, then `names`: they register kinds. A worker calls this before it
        starts."""
        for name in (*self.settings.imports, *names):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                    raise  # the module exists; a module that it imports does not
                raise ConfigurationError(f"imports names {name!r}, but there is no module {error.name!r}") from error

    def call(self, kind: str, /, *args: Any, **kwargs: Any) -> Call[Any]:
        """Make a call by the name of its kind. If the kind's function is not registered here, the arguments are checked
        where the task runs."""
        known = self.kinds.get(kind)
        return known.call(*args, **kwargs) if known is not None else call_by_name(kind, args, kwargs, self.settings.url)

    def limit(self, name: str, value: int | None = None, *, rate: Rate | None = None) -> None:
        """Declare a limit over all nodes. It counts the tasks that name it in `limits=[...]`, and those on servers
        whose addresses it covers as a prefix. At most `value` of them run at once, and they start at most at `rate`. A
        `value` of None means no limit unless an operator sets one; 0 means closed."""
        self._registry.add_limit(
            check_limit_name(name, "a limit"),
            check_limit(value, f"limit {name!r}"),
            None if rate is None else check_rate(rate),
        )

    def provider(
        self,
        name: str,
        *,
        servers: Servers = (),
        capacity: int | None = 1,
        slots: int | None = None,
        timeout: Duration | None = UNSET,
        health: Health | None = DEFAULT_HEALTH,
        **hooks: Callable[..., Any],
    ) -> Provider:
        """Declare a named pool of servers: a dict of addresses and capacities, or addresses that all have `capacity`.
        At most `slots` of its tasks run at once on each node."""
        return Provider(
            self, name, servers=servers, capacity=capacity, slots=slots, timeout=timeout, health=health, **hooks
        )

    @property
    def when_idle(self) -> WhenIdle:
        """The decorator that registers an idle hook: a function that is called when a node has free capacity and no
        ready task. It may enqueue any number of tasks. With or without options: `every` (5 seconds) and `timeout`."""
        return registrar(self)

    def middleware(self, function: Around) -> Around:
        """Add middleware around all task functions: `async def around(ctx, call_next)`. The first one is the outermost.
        The middleware of a kind is inside these."""
        self._middlewares.append(check_middleware(function, "engine.middleware"))
        for task_type in self.kinds.values():
            task_type.wrap_again()
        return function

    def lifespan(self, function: Lifespan) -> Lifespan:
        """Set up what the tasks of a worker share: an `async def` with one `yield`. Its first part runs before a worker
        starts, the rest after its last task has ended. Several lifespans nest: the first one is the outermost."""
        self._lifespans.append(worker_lifespan(function))
        return function

    def process_lifespan(self, function: ChildLifespan) -> ChildLifespan:
        """Set up what the tasks of a child process share: a plain `def` with one `yield`. Its first part runs before
        the first task of the process, the rest when the process ends in order, but not when it is killed."""
        self._process_lifespans.append(process_lifespan(function))
        return function

    def on_event(self, subscriber: Listener) -> Listener:
        """Call a function with each Event of this engine's own node: after the change is stored, at most once, in
        order. The function cannot delay or change a task."""
        self._subscribers.append(check_subscriber(subscriber))
        return subscriber

    def on_server_event(self, subscriber: ServerListener) -> ServerListener:
        """Call a function with each ServerEvent of this engine's own node: when one of its attempts or probes took a
        server out of service, or brought it back. Otherwise as `on_event`."""
        self._server_subscribers.append(check_subscriber(subscriber, "on_server_event"))
        return subscriber

    # ------------------------------------------------------------ connect, run, stop

    async def connect(self) -> Self:
        """Connect to the store. May be called several times; `close` must be called as often."""
        await self._lifecycle.connect()
        return self

    def api(self, *, auth: Auth, hosts: Iterable[str] | None = None) -> Starlette:
        """An ASGI app with the HTTP API of this engine under `/api/v1`, to be mounted in another app. `auth` is a
        function from a request to a `synergon.web.access.User` or None. The app has connections of its own, which are
        closed with those of the engine. Needs the extra `web`."""
        from synergon.web.app import make_app

        return make_app(self, auth=auth, hosts=hosts)

    def dashboard(self, *, auth: Auth, hosts: Iterable[str] | None = None) -> Starlette:
        """An ASGI app with the dashboard of this engine and its HTTP API, to be mounted in another app. `auth` is a
        function from a request to a `synergon.web.access.User` or None; with `synergon.web.credentials.Credentials` the
        dashboard has a login. The app has connections of its own, which are closed with those of the engine. Needs the
        extra `web`."""
        from synergon.web.dashboard.app import make_dashboard

        return make_dashboard(self, auth=auth, hosts=hosts)

    def peer_app(self) -> PeerApp:
        """An ASGI app that receives messages of peers under `/peer/v1`, to be mounted in another app. Pass its address
        as `advertise`, and `listen="off"`."""
        from synergon.peering.asgi_app import PeerApp

        return PeerApp(self._connection.receive)

    async def close(self) -> None:
        """Undo one `connect`. The last `close` disconnects."""
        await self._lifecycle.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        """Connect, for code without an event loop."""
        self.sync_bridge.call(self._nothing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sync_bridge.close()

    @staticmethod
    async def _nothing() -> None:
        """Does nothing: the bridge connects before it calls a function."""

    async def stop(self, grace: Duration | None = UNSET) -> tuple[UnfinishedTask, ...]:
        """Stop the node in order, then disconnect. Idempotent: a second call waits for the first.

        Running tasks get `grace`, and two seconds more after they were asked to end. With `grace=None` the node waits
        for them without a limit; for uninterruptible tasks it always does. Returns the tasks whose functions still run,
        in threads, which cannot be ended: see `unfinished`.
        """
        await self._lifecycle.stop(self._grace(grace))
        return self.unfinished

    @property
    def unfinished(self) -> tuple[UnfinishedTask, ...]:
        """The tasks whose functions still run although their worker was stopped; empty when all have ended.

        Until then their claims are kept and the lease is renewed, so that no other worker runs these tasks. If the
        event loop still runs when a function ends, its outcome is stored. Otherwise its task is recovered when the
        lease has expired.
        """
        return self._connection.unfinished

    def _grace(self, grace: Any) -> float | None:
        if grace is UNSET:
            return self.settings.grace
        return None if grace is None else seconds(grace, "grace")

    def worker(
        self,
        *,
        name: str = UNSET,
        concurrency: int = UNSET,
        threads: int = UNSET,
        queues: Iterable[str] | Mapping[str, int | None] | None = UNSET,
        timeout: Duration | None = UNSET,
        lease: Duration = UNSET,
        sweep: Duration | None = UNSET,
        grace: Duration | None = UNSET,
        resources: Resources = UNSET,
        labels: Iterable[str] = UNSET,
        health_listen: str | None = UNSET,
        imports: Iterable[str] = UNSET,
        drain: bool = False,
    ) -> Worker:
        """A worker: runs a node in this process for the duration of an `async with`. With `drain`, the end of the block
        waits until no task is left that the node could run."""
        from synergon.worker import Worker

        settings = self.settings.changed(
            {
                "name": name,
                "concurrency": concurrency,
                "threads": threads,
                "queues": queues,
                "timeout": timeout,
                "lease": lease,
                "sweep": sweep,
                "grace": grace,
                "resources": resources,
                "labels": labels,
                "health_listen": health_listen,
                "imports": imports,
            },
            "worker",
        )
        return Worker(self, settings, drain=drain)

    async def run(self, *, drain: bool = False, **node_options: Any) -> int:
        """Run a node until SIGINT or SIGTERM, `stop()` or an operator action, or, with `drain`, until no task is left.

        Returns the exit code of the process: 0, or 86 after the operator action `restart`.
        """
        from synergon.worker import run_until_stopped

        return await run_until_stopped(self.worker(drain=drain, **node_options))

    def run_sync(self, *, drain: bool = False, **node_options: Any) -> int:
        """`run` for a script. Inside `with engine:`, or after *_sync calls, the node runs on the event loop that those
        use."""
        if self._connection.loop is None:
            return asyncio.run(self.run(drain=drain, **node_options))
        try:
            return self.sync_bridge.call(lambda: self.run(drain=drain, **node_options))
        except KeyboardInterrupt:
            self.sync_bridge.call(lambda: self._stop_node(self.settings.grace))
            return 0

    def _stop_soon(self) -> None:
        """Stop the node. Called after an operator action."""
        self._lifecycle.stop_node_soon()

    async def _stop_node(self, grace: float | None) -> None:
        """Stop the node of `worker()`."""
        await self._lifecycle.stop_node(grace)

    @property
    def _node(self) -> Node | None:
        """The node that runs in this process. None if there is none."""
        return self._connection.node

    @property
    def peers(self) -> Peers | None:
        """The other engines on this store. None while the engine is not connected, or if no other process can use the
        store."""
        return self._connection.peers

    @property
    def _store(self) -> Store:
        """The connected store. Raises NotConnected if the engine is not connected, or is connected on another event
        loop than the caller's."""
        return self._connection.store

    @property
    def _waiters(self) -> Waiters:
        """The waiters for results. Raises NotConnected as `store` does."""
        return self._connection.waiters

    @property
    def clock(self) -> Clock:
        """The clock of this engine."""
        return self._ports.clock

    # ------------------------------------------------------------ new tasks

    @must_await(sync="enqueue_sync")
    async def enqueue(self, calls: Iterable[Call[Value]], *, conn: Any = None) -> list[Handle[Value]]:
        """Store all calls or none. Returns when they are durable, or, with `conn`, part of the caller's transaction."""
        listed = listed_calls(calls)
        inserted = await self._enqueuer.enqueue(listed, conn)
        pairs = list(zip(inserted, listed, strict=True))
        return await made_in_chunks(lambda pair: Handle.of(self, pair[0], pair[1].task_type), pairs)

    def enqueue_sync(self, calls: Iterable[Call[Value]], *, conn: Any = None) -> list[Handle[Value]]:
        """`enqueue` for code without an event loop."""
        listed = listed_calls(calls)
        inserted = self._enqueuer.enqueue_sync(listed, conn)
        return [Handle.of(self, found, call.task_type) for found, call in zip(inserted, listed, strict=True)]

    @must_await(sync="group_sync")
    async def group(self, name: str, calls: Iterable[Call[Value]], *, then: Call[Any] | None = None) -> Group[Value]:
        """Store tasks as a group, all or none. `then` runs when all of them have ended, in whatever state."""
        listed = listed_calls(calls)
        opened = await self._enqueuer.open_group(name, listed, then)
        return Group.of(self, name, listed, then, opened)

    group_sync: Final = sync(group)

    def flow(self, name: str) -> Flow:
        """A new flow. Add steps to it, then enqueue it."""
        return Flow(self, name)

    def chain(self, calls: Iterable[Call[Any]], *, name: str = "chain") -> Flow:
        """A flow whose steps run one after the other, in this order."""
        flow = Flow(self, name)
        before: list[Step[Any]] = []
        for call in listed_calls(calls):
            before = [flow.add(call, after=before)]
        return flow

    # ------------------------------------------------------------ reading

    async def get(self, task_id: int) -> TaskRecord:
        """The task with this id, live or final. Raises TaskNotFound if there is none."""
        return await self._operations.get(task_id)

    get_sync: Final = sync(get)

    async def wait(self, task_id: int, *, timeout: Duration | None = None) -> TaskRecord:
        """Wait for the end of the task, and return its final record. Raises TaskDeleted if it was deleted, and
        ResultTimeout after `timeout`."""
        return await self._results.wait(task_id, timeout, is_ours=False)

    wait_sync: Final = sync(wait)

    def result_of(self, record: TaskRecord, task_type: AnyTask | None) -> Any:
        """The result of a final task, in the type of its function's annotation. Raises TaskFailed or TaskCancelled."""
        return self._results.decode(record, task_type)

    async def explain(self, task_id: int) -> Explanation:
        """Explain why a task waits, node by node, how it runs, or how it ended. Raises TaskNotFound if there is none.

        Other nodes are judged by their last published status, whose age is in `age`.
        """
        return await self._operations.explain(task_id)

    explain_sync: Final = sync(explain)

    async def tasks(self, **filters: Unpack[TaskFilters]) -> TaskPage:
        """One page of the tasks that match, newest first. For the following page, pass `page.next` as `after`.

        Filters: `state` and `kind` (one or several), `queue`, `tag`, `key`, `title`, `meta` (`{"customer": 42}`),
        `flow` (the id of a flow or group), `parent` (the id of the task that has created them), `node` (the ids of one
        or several nodes on which the last attempt ran), `enqueued_since`, `enqueued_until` and the like for `started`
        and `finished`, and `search`, a text in arguments and errors. `sort` is "id", "due" (scheduled tasks) or "end"
        (final ones), `ascending` reverses the order. A page has at most `limit` tasks (100).
        """
        return await self._operations.tasks(**filters)

    tasks_sync: Final = sync(tasks)

    async def counts(self, *, kind: str | None = None, queue: str | None = None, exact: bool = False) -> Counts[State]:
        """The number of tasks in each state, of this kind and queue, or of all. Up to 5000 live tasks are counted for
        this answer; if there are more, their numbers may be those of the last count, whose moment is `counted_at`.
        `exact` counts them all, which takes a while."""
        return await self._operations.counts(kind=kind, queue=queue, exact=exact)

    counts_sync: Final = sync(counts)

    async def queues(self) -> list[QueueRecord]:
        """All queues, with the number of their tasks in each state, and whether they are paused."""
        return await self._store.queues()

    queues_sync: Final = sync(queues)

    async def nodes(self) -> list[NodeRecord]:
        """All registered nodes, including dead ones that are not reaped yet. Engines that only wait for results are
        left out."""
        return await self._operations.nodes()

    nodes_sync: Final = sync(nodes)

    async def limits(self) -> list[LimitRecord]:
        """All limits, by name, with their permits in use."""
        return await self._store.limits()

    limits_sync: Final = sync(limits)

    async def servers(self) -> list[ServerRecord]:
        """The servers of all providers, with their running tasks and back-offs."""
        return await self._store.servers()

    servers_sync: Final = sync(servers)

    async def audit(self, limit: int = 100) -> list[AuditRecord]:
        """The latest operator actions, newest first: who, when, what, and the outcome. `limit`
        is at most 10000."""
        return await self._store.audit(check_page_limit(limit))

    audit_sync: Final = sync(audit)

    def events(
        self,
        after: str | None = None,
        *,
        kinds: str | Iterable[str] | None = None,
        states: State | str | Iterable[State | str] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield every final event of all nodes, for ever: `async for event in engine.events(after=cursor)`.

        Starts after the event with this `cursor`; without a cursor, with the oldest event in the history; with "now",
        at the next event. A stream omits nothing and repeats nothing. Raises EventsLost if the history was pruned
        faster than it was read.
        """
        return self._events.stream(after, kinds, states, self.settings.sweep)

    # ------------------------------------------------------------ changing tasks

    async def cancel(self, task_id: int, why: str | None = None) -> bool:
        """Cancel a task in any state: at once if it does not run, otherwise as soon as its task function ends.

        Returns False if the task had ended already. Raises TaskNotFound if there is none.
        """
        return await self._operations.cancel(task_id, why)

    cancel_sync: Final = sync(cancel)

    async def cancel_group(self, group_id: int, why: str | None = None) -> int:
        """Cancel all live tasks of a group. Returns how many there were."""
        return await self._operations.cancel_group(group_id, why)

    cancel_group_sync: Final = sync(cancel_group)

    async def retry(self, task_id: int) -> None:
        """Run a final task again, under its id, with attempts and crashes reset. Raises IllegalMove if it is not final,
        and KeyConflict if a live task holds its key."""
        await self._operations.retry(task_id)

    retry_sync: Final = sync(retry)

    async def delete(self, task_id: int) -> None:
        """Delete a task, live or final. Callers that wait for it get TaskDeleted. Raises IllegalMove if it runs."""
        await self._operations.delete(task_id)

    delete_sync: Final = sync(delete)

    async def reschedule(self, task_id: int, *, delay: Duration | None = None, run_at: datetime | None = None) -> None:
        """Change when a scheduled or ready task is due. Raises IllegalMove if it is in another state."""
        await self._operations.reschedule(task_id, delay=delay, run_at=run_at)

    reschedule_sync: Final = sync(reschedule)

    async def set_priority(self, task_id: int, priority: int) -> None:
        """Change the priority of a live task that is not running and not a command. Raises IllegalMove for any other
        task."""
        await self._operations.set_priority(task_id, priority)

    set_priority_sync: Final = sync(set_priority)

    async def extend_timeout(self, task_id: int, duration: Duration) -> None:
        """Give the running attempt of a task more time, on any node: its deadline moves by `duration`. Extensions add
        up. Raises IllegalMove if the task does not run."""
        await self._operations.extend_timeout(task_id, duration)

    extend_timeout_sync: Final = sync(extend_timeout)

    async def update_meta(self, task_id: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Change the metadata of a task, live or final: each name gets its new value, None removes it, and other names
        remain. Returns all metadata of the task. An attempt that runs does not see the change."""
        return await self._operations.update_meta(task_id, values)

    update_meta_sync: Final = sync(update_meta)

    async def prune(
        self,
        *,
        succeeded: Duration | None = None,
        failed: Duration | None = None,
        cancelled: Duration | None = None,
    ) -> int:
        """Delete ended tasks now that are older than the age given for their state. Tasks in a state without an age are
        kept. Without any age, the retention of the cluster applies. For a task whose kind has `keep`, that age counts
        instead. Returns how many tasks were deleted."""
        given = Retention(succeeded=succeeded, failed=failed, cancelled=cancelled)
        return await self._operations.prune(await self.retention() if given == KEEP_ALL else given)

    prune_sync: Final = sync(prune)

    async def status(self) -> ClusterStatus:
        """The status of the cluster: workers, depth and age of queues, failures of the last hour, overdue tasks and
        suspended servers. Its cost does not grow with the number of tasks."""
        return await self._operations.status(self.settings.url)

    status_sync: Final = sync(status)

    async def statistics(
        self, *, kind: str | None = None, queue: str | None = None, since: Duration | datetime = "1h"
    ) -> list[Statistics]:
        """How many tasks of each kind and queue were enqueued, started and ended since `since` (a moment, or a duration
        before now), how long they waited and ran, and their commonest errors. Engines and workers write what they have
        counted every few seconds, and at their end."""
        return await self._operations.statistics(kind, queue, since)

    statistics_sync: Final = sync(statistics)

    async def retention(self) -> Retention:
        """How long ended tasks are kept: as a worker has declared or an operator has set; otherwise by the setting of
        this engine."""
        return await self._operations.retention() or self.settings.retention

    retention_sync: Final = sync(retention)

    async def set_retention(self, retention: Retention) -> None:
        """Change how long all workers keep ended tasks. The change holds until a worker declares a retention that
        differs from the last declared one. The audit records it."""
        await self._control.set_retention(retention)

    set_retention_sync: Final = sync(set_retention)

    # ------------------------------------------------------------ changing all tasks that match

    async def cancel_all(
        self, why: str | None = None, *, on_progress: OnProgress | None = None, **filters: Unpack[BulkFilters]
    ) -> int:
        """Cancel all tasks that match these filters of `tasks`; live ones, unless `state` is given.

        Like all bulk operations, it works in transactions of at most 500 tasks, and calls `on_progress` after each one
        with the number of tasks visited so far. The audit gets one entry, with `why`. Returns how many tasks were
        changed. Tasks that are enqueued meanwhile are not visited.
        """
        return await self._bulk.apply_to_all(bulk.cancel(check_why(why)), filters, on_progress)

    cancel_all_sync: Final = sync(cancel_all)

    async def retry_all(
        self, *, why: str | None = None, on_progress: OnProgress | None = None, **filters: Unpack[BulkFilters]
    ) -> int:
        """Retry all tasks that match; failed ones, unless `state` is given. A task whose key a live task holds is left
        alone."""
        return await self._bulk.apply_to_all(bulk.retry(check_why(why)), filters, on_progress)

    retry_all_sync: Final = sync(retry_all)

    async def delete_all(
        self, *, why: str | None = None, on_progress: OnProgress | None = None, **filters: Unpack[BulkFilters]
    ) -> int:
        """Delete all tasks that match; ended ones, unless `state` is given."""
        return await self._bulk.apply_to_all(bulk.delete(check_why(why)), filters, on_progress)

    delete_all_sync: Final = sync(delete_all)

    async def reschedule_all(
        self,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        why: str | None = None,
        on_progress: OnProgress | None = None,
        **filters: Unpack[BulkFilters],
    ) -> int:
        """Change when all scheduled and ready tasks that match are due."""
        operation = bulk.reschedule(*check_due(delay, run_at), check_why(why))
        return await self._bulk.apply_to_all(operation, filters, on_progress)

    reschedule_all_sync: Final = sync(reschedule_all)

    async def set_priority_all(
        self,
        priority: int,
        *,
        why: str | None = None,
        on_progress: OnProgress | None = None,
        **filters: Unpack[BulkFilters],
    ) -> int:
        """Change the priority of all tasks that match and have not started."""
        operation = bulk.set_priority(check_priority(priority), check_why(why))
        return await self._bulk.apply_to_all(operation, filters, on_progress)

    set_priority_all_sync: Final = sync(set_priority_all)

    # ------------------------------------------------------------ operator actions

    async def set_limit(
        self, name: str, value: int | UnsetType | None = NOT_GIVEN, *, rate: Rate | UnsetType | None = NOT_GIVEN
    ) -> None:
        """Change the value or the rate of a limit for all nodes, until the code declares another one. Running tasks
        continue; a raised limit takes effect at once. The limits that belong to a kind K are named `kind:K` and
        `key:K`."""
        await self._control.set_limit(name, value, rate)

    set_limit_sync: Final = sync(set_limit)

    async def set_servers(self, provider: str, servers: Servers, *, capacity: int | None = 1) -> None:
        """Replace the pool of a provider for all nodes. The provider's code need not be imported here."""
        await self._control.set_servers(provider, servers, capacity=capacity)

    set_servers_sync: Final = sync(set_servers)

    async def add_server(self, provider: str, address: str, capacity: int | None = 1) -> None:
        """Add a server to the pool of a provider for all nodes, or change its capacity. Other servers stay as they
        are."""
        await self._control.change_server("add_server", provider, address, check_limit(capacity, "capacity"))

    add_server_sync: Final = sync(add_server)

    async def remove_server(self, provider: str, address: str) -> None:
        """Remove a server from the pool of a provider for all nodes. Tasks on it finish there; its health is forgotten.
        Raises OptionError if the pool does not have it."""
        await self._control.change_server("remove_server", provider, address)

    remove_server_sync: Final = sync(remove_server)

    async def close_server(self, provider: str, address: str) -> None:
        """Close a server for all nodes: it stays in the pool, with capacity 0. Tasks on it finish there. Raises
        OptionError if the pool does not have it."""
        await self._control.change_server("close_server", provider, address)

    close_server_sync: Final = sync(close_server)

    async def pause(self, queue: str) -> bool:
        """Pause the queue: no node claims from it until `resume`, even after restarts. False if it was paused already.
        On PostgreSQL, a claim that is in flight may still take tasks of it."""
        return await self._control.pause(queue)

    pause_sync: Final = sync(pause)

    async def resume(self, queue: str) -> bool:
        """Resume the queue. False if it was not paused."""
        return await self._control.resume(queue)

    resume_sync: Final = sync(resume)

    async def cordon(self, node_id: str) -> None:
        """Cordon a node: it starts no further task. Its running tasks continue."""
        await self._control.act_on_node("cordon", node_id)

    cordon_sync: Final = sync(cordon)

    async def uncordon(self, node_id: str) -> None:
        """Undo `cordon`, and also `drain` and `restart` while the node has not stopped yet."""
        await self._control.act_on_node("uncordon", node_id)

    uncordon_sync: Final = sync(uncordon)

    async def drain(self, node_id: str) -> None:
        """Cordon a node, and stop it when no task runs on it. A worker process then exits with code 0."""
        await self._control.act_on_node("drain", node_id)

    drain_sync: Final = sync(drain)

    async def restart(self, node_id: str) -> None:
        """Like `drain`, but the worker process exits with code 86, so that its supervisor starts it again."""
        await self._control.act_on_node("restart", node_id)

    restart_sync: Final = sync(restart)

    async def shut_down(self, node_id: str) -> None:
        """Stop a node in order. Its running tasks get the grace of the node. A worker process then exits."""
        await self._control.act_on_node("stop", node_id)

    shut_down_sync: Final = sync(shut_down)
