"""The engine: the object that a program uses. It composes the parts in `client/`, and owns the order of start and stop.

Long, because it is the public interface. Most of it is signatures and their guarantees; the parts do the work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from synergon.client import bulk
from synergon.client.announcer import Announcer
from synergon.client.call_lists import listed_calls
from synergon.client.connection import Connection
from synergon.client.control import Control
from synergon.client.cooperative import made_in_chunks
from synergon.client.enqueuer import Enqueuer
from synergon.client.events import Events, check_subscriber
from synergon.client.must_await import must_await
from synergon.client.operations import Operations, check_due, check_why, query_of
from synergon.client.ports import Ports
from synergon.client.results import Results
from synergon.client.schedule_declarations import ScheduleDeclarations
from synergon.client.schedules import Schedules
from synergon.client.sync_bridge import SyncBridge
from synergon.client.unrunnable_warning import UnrunnableWarning
from synergon.errors import KindError, OptionError
from synergon.group import Group
from synergon.handle import Handle
from synergon.model.clock import Clock
from synergon.model.events import Event
from synergon.model.lifecycle import State
from synergon.model.nodes import HEARTBEATS_PER_LEASE
from synergon.model.printable import printing
from synergon.model.task_records import BulkFilters
from synergon.options import settings as engine_settings
from synergon.options.decorators import TaskDecorator
from synergon.options.durations import Duration, seconds
from synergon.options.idle_hook import IdleHook, WhenIdle, registrar
from synergon.options.middleware_checks import Middleware, check_middleware
from synergon.options.options import check_limit, check_limit_name, check_priority, reject_unknown
from synergon.options.pipelines import reject_circle, reject_unknown_upstream
from synergon.options.settings import UNSET, Settings
from synergon.options.sizes import Size
from synergon.options.store_urls import shown
from synergon.policies import Health, Resources, Retention
from synergon.providers.provider import DEFAULT_HEALTH, Provider, Servers
from synergon.providers.registry import Registry
from synergon.task import AnyTask, Call, TaskType, call_by_name

if TYPE_CHECKING:
    from synergon.client.results import Waiters
    from synergon.explain.explanation import Explanation
    from synergon.model.limits import LimitRecord, ServerRecord
    from synergon.model.nodes import NodeRecord
    from synergon.model.operator_actions import AuditRecord
    from synergon.model.schedules import FiredTask, NewSchedule
    from synergon.model.task_records import QueueRecord, TaskFilters, TaskPage, TaskRecord
    from synergon.model.tasks import Moved
    from synergon.node.callbacks.event_feed import Subscriber
    from synergon.node.node import Node
    from synergon.peering.asgi_app import PeerApp
    from synergon.peering.peers import Peers
    from synergon.peering.signatures import Envelope
    from synergon.peering.transport import Transport
    from synergon.stores.base import Store
    from synergon.worker import Worker

KEEP_ALL: Final = Retention(succeeded=None, failed=None, cancelled=None)

OnProgress = Callable[[int], object]
"""What bulk operations call after each transaction, with the number of tasks visited so far."""

Around = TypeVar("Around", bound=Middleware)
Listener = TypeVar("Listener", bound="Subscriber")
Value = TypeVar("Value")


class Engine(ScheduleDeclarations):
    """A store, the registered kinds of tasks and, while a worker runs, a node.

    Creating an engine connects to nothing. `async with engine:` connects and runs nothing; `async with
    engine.worker():` runs tasks in this process. Each setting has an environment variable of its name
    (`SYNERGON_CONCURRENCY`, ...).
    """

    name_in_code: Final = "engine"
    """The name of an engine in messages."""

    def __init__(
        self,
        url: str = UNSET,
        *,
        name: str = UNSET,
        concurrency: int = UNSET,
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
        self.logger = logger or logging.getLogger("synergon")
        printing(self.logger)
        self.kinds: dict[str, AnyTask] = {}
        self.registry = Registry()
        self.idle_hooks: list[IdleHook] = []
        self.declared_schedules: dict[str, NewSchedule] = {}
        self.subscribers: list[Subscriber] = []
        self.middlewares: list[Middleware] = []
        self.ports = Ports()
        if transport is not None:
            self.ports.make_transport = lambda _settings: transport
        self.ports.make_store(self.settings.url)  # a URL that makes no sense is a mistake here, not later
        self._make_parts()
        self._users = 0
        self._stopping: asyncio.Future[None] | None = None
        self._ordered_stop: asyncio.Task[None] | None = None

    def _make_parts(self) -> None:
        refresh_seconds = self.settings.lease / HEARTBEATS_PER_LEASE
        self.connection = Connection(self.kinds, self.registry, self.ports, self.logger)
        self.sync_bridge = SyncBridge(self, self.connection)
        self.announcer = Announcer(self.connection, self.kinds)
        self.unrunnable_warning = UnrunnableWarning(self.ports, self.logger, refresh_seconds, self.kinds)
        self.enqueuer = Enqueuer(
            self.connection, self.announcer, self.registry, self.unrunnable_warning, self.sync_bridge
        )
        self.operations = Operations(self.connection, self.announcer)
        self.bulk = bulk.Bulk(self.connection, self.announcer)
        self.control = Control(self.connection, self.announcer, self.operations)
        self.results = Results(self.connection, self.kinds)
        self._events = Events(self.connection, self.logger)
        self.schedules = Schedules(
            self.connection, self.announcer, self.control, self.sync_bridge, self.ports, self.logger, self._fired
        )

    def __repr__(self) -> str:
        return f"<Engine {shown(self.settings.url)}>"

    # ------------------------------------------------------------ kinds

    @property
    def task(self) -> TaskDecorator:
        """The decorator that registers a function as a kind, with or without options. The function remains callable."""
        return TaskDecorator(self, {})

    def register(
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
        if self.node is not None:
            raise KindError(
                f"the worker of this engine runs already and would never run the kind {task_type.kind!r}; register all "
                "kinds before it starts"
            )
        if task_type.policy.downstream_of:
            together = {**self.kinds, task_type.kind: task_type}
            reject_circle(together)
        self.registry.add_kind(task_type)
        self.kinds[task_type.kind] = task_type
        return task_type

    def call(self, kind: str, /, *args: Any, **kwargs: Any) -> Call[Any]:
        """Make a call by the name of its kind. If the kind's function is not registered here, the arguments are checked
        where the task runs."""
        known = self.kinds.get(kind)
        return known.call(*args, **kwargs) if known is not None else call_by_name(kind, args, kwargs)

    def limit(self, name: str, value: int | None) -> None:
        """Declare a limit: over all nodes, at most `value` tasks run at once of those that name it in `limits=[...]` or
        run on a server of which it is a prefix. None means no limit unless an operator sets one; 0 means closed."""
        self.registry.add_limit(check_limit_name(name, "a limit"), check_limit(value, f"limit {name!r}"))

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
        self.middlewares.append(check_middleware(function, "engine.middleware"))
        for task_type in self.kinds.values():
            task_type.wrap_again()
        return function

    def on_event(self, subscriber: Listener) -> Listener:
        """Call a function with each Event of this engine's own node: after the change is stored, at most once, in
        order. The function delays and changes nothing."""
        self.subscribers.append(check_subscriber(subscriber))
        return subscriber

    # ------------------------------------------------------------ connect, run, stop

    async def connect(self) -> Self:
        """Connect to the store. May be called several times; `close` must be called as often."""
        self.connection.check_is_here()
        if not self.connection.is_in_child:  # a child imports the one module that it needs
            reject_unknown_upstream(self.kinds)
        self._users += 1
        if not self.connection.is_open:
            try:
                await self.connection.open(self.settings)
            except BaseException:
                self._users -= 1
                raise
        return self

    def peer_app(self) -> PeerApp:
        """An ASGI app that receives messages of peers under `/peer/v1`, to be mounted in another app. Pass its address
        as `advertise`, and `listen="off"`."""
        from synergon.peering.asgi_app import PeerApp
        from synergon.peering.transport import Rejected

        def receive(envelope: Envelope) -> bytes:
            if self.peers is None:
                raise Rejected(503, "this engine is not connected")
            return self.peers.receive(envelope)

        return PeerApp(receive)

    async def close(self) -> None:
        """Undo one `connect`. The last `close` disconnects."""
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
        self.sync_bridge.call(self._nothing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sync_bridge.close()

    @staticmethod
    async def _nothing() -> None:
        """Does nothing: the bridge connects before it calls a function."""

    async def stop(self, grace: Duration | None = UNSET) -> None:
        """Stop the node in order, then disconnect. Idempotent: a second call waits for the first."""
        if self.connection.loop is not None and self.connection.loop.is_running():
            self.connection.check_is_here()
        if self._stopping is None:
            if self.node is not None:
                self.node.shutdown.reject_from_inside(self._grace(grace))
            self._stopping = asyncio.ensure_future(self._stop(self._grace(grace)))
        try:
            await asyncio.shield(self._stopping)
        finally:
            if self._stopping is not None and self._stopping.done():
                self._stopping = None

    async def _stop(self, grace: float | None) -> None:
        await self.stop_node(grace)
        if self.connection.is_open:
            self._users = 0
            await self.connection.close()

    def _grace(self, grace: Any) -> float | None:
        if grace is UNSET:
            return self.settings.grace
        return None if grace is None else seconds(grace, "grace")

    def worker(
        self,
        *,
        name: str = UNSET,
        concurrency: int = UNSET,
        queues: Iterable[str] | Mapping[str, int | None] | None = UNSET,
        timeout: Duration | None = UNSET,
        lease: Duration = UNSET,
        sweep: Duration | None = UNSET,
        grace: Duration | None = UNSET,
        resources: Resources = UNSET,
        labels: Iterable[str] = UNSET,
        drain: bool = False,
    ) -> Worker:
        """A worker: runs a node in this process for the duration of an `async with`. With `drain`, the end of the block
        waits until no task is left that the node could run."""
        from synergon.worker import Worker

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
        """Run a node until SIGINT or SIGTERM, `stop()` or an operator action, or, with `drain`, until no task is left.

        Returns the exit code of the process: 0, or 86 after the operator action `restart`.
        """
        from synergon.worker import run_until_stopped

        return await run_until_stopped(self.worker(drain=drain, **node_options))

    def run_sync(self, *, drain: bool = False, **node_options: Any) -> int:
        """`run` for a script. Inside `with engine:`, or after *_sync calls, the node runs on the event loop that those
        use."""
        if self.connection.loop is None:
            return asyncio.run(self.run(drain=drain, **node_options))
        try:
            return self.sync_bridge.call(lambda: self.run(drain=drain, **node_options))
        except KeyboardInterrupt:
            self.sync_bridge.call(self._stop_node)
            return 0

    def stop_soon(self) -> None:
        """Stop the node. Called after an operator action."""
        self._ordered_stop = asyncio.get_running_loop().create_task(self._stop_node())

    async def _stop_node(self) -> None:
        await self.stop_node(self.settings.grace)

    async def stop_node(self, grace: float | None) -> None:
        """Stop the node of `worker()`."""
        node = self.node
        if node is not None:
            await node.stop(grace)
            if self.node is node:
                self.connection.node = None

    @property
    def node(self) -> Node | None:
        """The node that runs in this process. None if there is none."""
        return self.connection.node

    @property
    def peers(self) -> Peers | None:
        """The other engines on this store. None while the engine is not connected, or if no other process can use the
        store."""
        return self.connection.peers

    @property
    def store(self) -> Store:
        """The connected store. Raises NotConnected if the engine is not connected, or is connected on another event
        loop than the caller's."""
        return self.connection.store

    @property
    def waiters(self) -> Waiters:
        """The waiters for results. Raises NotConnected as `store` does."""
        return self.connection.waiters

    @property
    def clock(self) -> Clock:
        """The clock of this engine."""
        return self.ports.clock

    # ------------------------------------------------------------ new tasks

    @must_await(sync="enqueue_sync")
    async def enqueue(self, calls: Iterable[Call[Any]], *, conn: Any = None) -> list[Handle[Any]]:
        """Store all calls or none. Returns when they are durable, or, with `conn`, part of the caller's transaction."""
        listed = listed_calls(calls)
        inserted = await self.enqueuer.enqueue(listed, conn)
        pairs = list(zip(inserted, listed, strict=True))
        return await made_in_chunks(lambda pair: Handle.of(self, pair[0], pair[1].task_type), pairs)

    def enqueue_sync(self, calls: Iterable[Call[Any]], *, conn: Any = None) -> list[Handle[Any]]:
        """`enqueue` for code without an event loop."""
        listed = listed_calls(calls)
        inserted = self.enqueuer.enqueue_sync(listed, conn)
        return [Handle.of(self, found, call.task_type) for found, call in zip(inserted, listed, strict=True)]

    @must_await(sync="group_sync")
    async def group(self, name: str, calls: Iterable[Call[Any]], *, then: Call[Any] | None = None) -> Group:
        """Store tasks as a group, all or none. `then` runs when all of them have ended, in whatever state."""
        listed = listed_calls(calls)
        opened = await self.enqueuer.open_group(name, listed, then)
        return Group(self, opened.id, name, listed if then is None else [*listed, then], opened)

    def group_sync(self, name: str, calls: Iterable[Call[Any]], *, then: Call[Any] | None = None) -> Group:
        """`group` for code without an event loop."""
        return self.sync_bridge.call(lambda: self.group(name, calls, then=then))

    def _fired(self, task: FiredTask) -> Handle[Any]:
        return Handle(self, task.id, task_type=self.kinds.get(task.kind))

    # ------------------------------------------------------------ reading

    async def get(self, task_id: int) -> TaskRecord:
        """One task, live or final. Raises TaskNotFound if there is none."""
        return await self.operations.get(task_id)

    async def wait(self, task_id: int, *, timeout: Duration | None = None) -> TaskRecord:
        """Wait for the end of the task, and return its final record. Raises TaskDeleted if it was deleted, and
        ResultTimeout after `timeout`."""
        return await self.results.wait(task_id, timeout, is_ours=False)

    def result_of(self, record: TaskRecord, task_type: AnyTask | None) -> Any:
        """The result of a final task, in the type of its function's annotation. Raises TaskFailed or TaskCancelled."""
        return self.results.decode(record, task_type)

    async def explain(self, task_id: int) -> Explanation:
        """Explain why a task waits, node by node, how it runs, or how it ended. Raises TaskNotFound if there is none.

        Other nodes are judged by their last published status, whose age is in `age`.
        """
        return await self.operations.explain(task_id)

    async def tasks(self, **filters: Unpack[TaskFilters]) -> TaskPage:
        """One page of the tasks that match, newest first. For the following page, pass `page.next` as `before`.
        Filters: `state` (one or several), `kind`, `queue`, `tag`, `key`, `title`. A page has at most `limit` tasks
        (100)."""
        return await self.operations.tasks(**filters)

    async def counts(self, *, kind: str | None = None, queue: str | None = None) -> dict[State, int]:
        """The exact number of tasks in each state, of this kind and queue, or of all."""
        return await self.operations.counts(kind=kind, queue=queue)

    async def queues(self) -> list[QueueRecord]:
        """All queues, with the number of their tasks in each state, and whether they are paused."""
        return await self.store.queues()

    async def nodes(self) -> list[NodeRecord]:
        """All registered nodes, including dead ones that are not reaped yet. Engines that only wait for results are
        left out."""
        return await self.operations.nodes()

    async def limits(self) -> list[LimitRecord]:
        """All limits, by name, with their permits in use."""
        return await self.store.limits()

    async def servers(self) -> list[ServerRecord]:
        """The servers of all providers, with their running tasks and back-offs."""
        return await self.store.servers()

    async def audit(self, limit: int = 100) -> list[AuditRecord]:
        """The latest operator actions, newest first: who, when, what, and the outcome."""
        return await self.store.audit(limit)

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
        return await self.operations.cancel(task_id, why)

    async def cancel_group(self, group_id: int, why: str | None = None) -> int:
        """Cancel all live tasks of a group. Returns how many there were."""
        return await self.operations.cancel_group(group_id, why)

    async def retry(self, task_id: int) -> None:
        """Run a final task again, under its id, with attempts and crashes reset. Raises IllegalMove if it is not final,
        and KeyConflict if a live task holds its key."""
        await self.operations.retry(task_id)

    async def delete(self, task_id: int) -> None:
        """Delete a task, live or final. Callers that wait for it get TaskDeleted. Raises IllegalMove if it runs."""
        await self.operations.delete(task_id)

    async def reschedule(self, task_id: int, *, delay: Duration | None = None, run_at: datetime | None = None) -> None:
        """Change when a scheduled or ready task is due. Raises IllegalMove if it is in another state."""
        await self.operations.reschedule(task_id, delay=delay, run_at=run_at)

    async def set_priority(self, task_id: int, priority: int) -> None:
        """Change the priority of a live task that is not running and not a command. Raises IllegalMove for any other
        task."""
        await self.operations.set_priority(task_id, priority)

    async def extend_timeout(self, task_id: int, duration: Duration) -> None:
        """Give the running attempt of a task more time, on whatever node: its deadline moves by `duration`. Extensions
        add up. IllegalMove if the task does not run."""
        await self.operations.extend_timeout(task_id, duration)

    def extend_timeout_sync(self, task_id: int, duration: Duration) -> None:
        """`extend_timeout` for code without an event loop."""
        self.sync_bridge.call(lambda: self.extend_timeout(task_id, duration))

    async def update_meta(self, task_id: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Change the metadata of a task, live or final: each name gets its new value, None removes it, and other names
        remain. Returns all of it. A running attempt keeps what it began with."""
        return await self.operations.update_meta(task_id, values)

    def update_meta_sync(self, task_id: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """`update_meta` for code without an event loop."""
        return self.sync_bridge.call(lambda: self.update_meta(task_id, values))

    async def prune(
        self,
        *,
        succeeded: Duration | None = None,
        failed: Duration | None = None,
        cancelled: Duration | None = None,
    ) -> int:
        """Delete ended tasks that are older than the age of their state, now. States without an age are kept; without
        any age, the engine's `retention` holds. Returns how many tasks were deleted."""
        given = Retention(succeeded=succeeded, failed=failed, cancelled=cancelled)
        return await self.operations.prune(self.settings.retention if given == KEEP_ALL else given)

    def prune_sync(
        self,
        *,
        succeeded: Duration | None = None,
        failed: Duration | None = None,
        cancelled: Duration | None = None,
    ) -> int:
        """`prune` for code without an event loop."""
        return self.sync_bridge.call(lambda: self.prune(succeeded=succeeded, failed=failed, cancelled=cancelled))

    # ------------------------------------------------------------ changing all tasks that match

    async def cancel_all(
        self, why: str | None = None, *, on_progress: OnProgress | None = None, **filters: Unpack[BulkFilters]
    ) -> int:
        """Cancel all tasks that match these filters of `tasks`; live ones, unless `state` is given.

        As for all bulk operations: transactions of at most 500 tasks, one after the other, after each of which
        `on_progress` is called with the number of tasks visited so far; one entry in the audit; returns how many tasks
        were changed. Tasks that are enqueued meanwhile are not visited.
        """
        return await self._apply_to_all(bulk.cancel(check_why(why)), filters, on_progress)

    async def retry_all(self, *, on_progress: OnProgress | None = None, **filters: Unpack[BulkFilters]) -> int:
        """Retry all tasks that match; failed ones, unless `state` is given. A task whose key a live task holds is left
        alone."""
        return await self._apply_to_all(bulk.retry(), filters, on_progress)

    async def delete_all(self, *, on_progress: OnProgress | None = None, **filters: Unpack[BulkFilters]) -> int:
        """Delete all tasks that match; ended ones, unless `state` is given."""
        return await self._apply_to_all(bulk.delete(), filters, on_progress)

    async def reschedule_all(
        self,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        on_progress: OnProgress | None = None,
        **filters: Unpack[BulkFilters],
    ) -> int:
        """Change when all scheduled and ready tasks that match are due."""
        return await self._apply_to_all(bulk.reschedule(*check_due(delay, run_at)), filters, on_progress)

    async def set_priority_all(
        self, priority: int, *, on_progress: OnProgress | None = None, **filters: Unpack[BulkFilters]
    ) -> int:
        """Change the priority of all tasks that match and have not started."""
        return await self._apply_to_all(bulk.set_priority(check_priority(priority)), filters, on_progress)

    async def _apply_to_all(
        self, operation: bulk.BulkOperation, filters: BulkFilters, on_progress: OnProgress | None
    ) -> int:
        reject_unknown(filters, BulkFilters.__annotations__, f"{operation.verb}()")
        visited = 0

        def count(moves: Sequence[Moved]) -> None:
            nonlocal visited
            visited += len(moves)
            if on_progress is not None:
                on_progress(visited)

        return await self.bulk.apply(operation, query_of(filters), count)

    def cancel_all_sync(
        self, why: str | None = None, *, on_progress: OnProgress | None = None, **filters: Unpack[BulkFilters]
    ) -> int:
        """`cancel_all` for code without an event loop."""
        return self.sync_bridge.call(lambda: self.cancel_all(why, on_progress=on_progress, **filters))

    def retry_all_sync(self, *, on_progress: OnProgress | None = None, **filters: Unpack[BulkFilters]) -> int:
        """`retry_all` for code without an event loop."""
        return self.sync_bridge.call(lambda: self.retry_all(on_progress=on_progress, **filters))

    def delete_all_sync(self, *, on_progress: OnProgress | None = None, **filters: Unpack[BulkFilters]) -> int:
        """`delete_all` for code without an event loop."""
        return self.sync_bridge.call(lambda: self.delete_all(on_progress=on_progress, **filters))

    def reschedule_all_sync(
        self,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        on_progress: OnProgress | None = None,
        **filters: Unpack[BulkFilters],
    ) -> int:
        """`reschedule_all` for code without an event loop."""
        return self.sync_bridge.call(
            lambda: self.reschedule_all(delay=delay, run_at=run_at, on_progress=on_progress, **filters)
        )

    def set_priority_all_sync(
        self, priority: int, *, on_progress: OnProgress | None = None, **filters: Unpack[BulkFilters]
    ) -> int:
        """`set_priority_all` for code without an event loop."""
        return self.sync_bridge.call(lambda: self.set_priority_all(priority, on_progress=on_progress, **filters))

    # ------------------------------------------------------------ operator actions

    async def set_limit(self, name: str, value: int | None) -> None:
        """Change a limit for all nodes, until the code declares another value. Running tasks continue; a raised limit
        takes effect at once. The limits that belong to a kind K are named `kind:K` and `key:K`."""
        await self.control.set_limit(name, value)

    async def set_servers(self, provider: str, servers: Servers, *, capacity: int | None = 1) -> None:
        """Replace the pool of a provider for all nodes. The provider's code need not be imported here."""
        await self.control.set_servers(provider, servers, capacity=capacity)

    async def pause(self, queue: str) -> bool:
        """Pause the queue: no node claims from it until `resume`, even after restarts. False if it was paused already.
        On PostgreSQL, a claim that is in flight may still take tasks of it."""
        return await self.control.pause(queue)

    async def resume(self, queue: str) -> bool:
        """Resume the queue. False if it was not paused."""
        return await self.control.resume(queue)

    async def cordon(self, node_id: str) -> None:
        """Cordon a node: it starts no further task. Its running tasks continue."""
        await self.control.act_on_node("cordon", node_id)

    async def uncordon(self, node_id: str) -> None:
        """Undo `cordon`, and also `drain` and `restart` while the node has not stopped yet."""
        await self.control.act_on_node("uncordon", node_id)

    async def drain(self, node_id: str) -> None:
        """Cordon a node, and stop it when no task runs on it. A worker process then exits with code 0."""
        await self.control.act_on_node("drain", node_id)

    async def restart(self, node_id: str) -> None:
        """Like `drain`, but the worker process exits with code 86, so that its supervisor starts it again."""
        await self.control.act_on_node("restart", node_id)

    async def shut_down(self, node_id: str) -> None:
        """Stop a node in order. Its running tasks get the grace of the node. A worker process then exits."""
        await self.control.act_on_node("stop", node_id)
