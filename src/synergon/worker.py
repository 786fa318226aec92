"""The worker: runs a node in this process, for the duration of an `async with` or until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final

from synergon.errors import OptionError, StoreUnavailable
from synergon.node.attempts.deadlines import Timeouts
from synergon.node.duty import pause_after
from synergon.node.health.monitor import HealthMonitor
from synergon.node.health.readiness import Readiness
from synergon.node.health.systemd import notifier_of
from synergon.node.logger import NodeLogger
from synergon.options.pipelines import reject_unknown_upstream
from synergon.options.settings import Settings
from synergon.stores import open_store

if TYPE_CHECKING:
    from synergon.engine import Engine
    from synergon.node.node import Node

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Worker:
    """Connects the engine if necessary and starts a node; at the end, stops the node in order."""

    def __init__(self, engine: Engine, settings: Settings, *, drain: bool) -> None:
        self._engine = engine
        self._settings = settings
        self.drain = drain
        self.may_exit = False
        self.on_start: Callable[[], None] = lambda: None
        """Called by `run_until_stopped` when the node has started."""
        self.grace: Final = settings.grace
        self.logger: Final = engine.logger
        self.monitor: Final = HealthMonitor(Readiness(settings.name), settings.health_listen, engine.logger)
        """Reports the health of the worker to probes and systemd."""
        self._stack = contextlib.AsyncExitStack()
        """The clean-up after the node has stopped: first of the lifespans, then of the connection."""

    @property
    def node(self) -> Node | None:
        """The node. None while there is none."""
        return self._engine._node

    @property
    def may_wait(self) -> bool:
        """Whether to wait for the store: a database server may start later, but a file that cannot be used is an
        error."""
        return open_store(self._settings.url).capabilities.remote

    async def __aenter__(self) -> Node:
        self._engine.import_modules(self._settings.imports)
        self.monitor.readiness.is_stopping = False
        async with contextlib.AsyncExitStack() as stack:
            if not self.monitor.is_running:
                await stack.enter_async_context(self.monitor)
            await self._engine.connect()
            stack.push_async_callback(self._engine.close)
            await enter_lifespans(self._engine, stack)
            node = await start_node(self._engine, self._settings, may_exit=self.may_exit)
            self.monitor.readiness.node = node
            self._stack = stack.pop_all()
        return node

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        node = self.node
        try:
            if self.drain and error is None and node is not None:
                await node.drained()
        finally:
            self.monitor.note_stop()
            try:
                await self._engine._stop_node(self.grace)
            finally:
                await self._stack.aclose()


async def enter_lifespans(engine: Engine, stack: contextlib.AsyncExitStack) -> None:
    """Enter the engine's lifespans, in order. The stack leaves those that were entered."""
    for make in engine._lifespans:
        await stack.enter_async_context(make())


async def start_node(engine: Engine, settings: Settings, *, may_exit: bool = False) -> Node:
    """Start a node on a connected engine. `may_exit`: the process belongs to the node, and may exit when the node
    stops."""
    connection = engine._connection
    if connection.node is not None:
        raise OptionError("this engine already runs a node; make another Engine for a second one")
    reject_unknown_upstream(engine.kinds)
    await connection.declare()
    logger = NodeLogger(engine.logger, {"node": settings.name})
    node = connection.node = engine._ports.make_node(
        connection.store,
        engine.kinds,
        settings,
        engine.clock,
        engine._ports.make_executor(settings),
        logger,
        waiters=connection.waiters,
        host=engine,
        peers=connection.peers,
        timeouts=Timeouts(settings.timeout, engine.timeout_for, logger),
        idle_hooks=engine.idle_hooks,
        schedules=engine._declared_schedules,
        subscribers=engine._subscribers,
        server_subscribers=engine._server_subscribers,
        children_to_check=engine._unrunnable_warning.for_children(connection.store),
        statistics=connection.statistics,
        may_exit=may_exit,
    )
    try:
        await node.start()
    except BaseException:
        connection.node = None
        raise
    return node


async def run_until_stopped(worker: Worker) -> int:
    """Run a node until a signal, `engine.stop()` or an operator action, or, with `drain`, until no task is left.
    Returns the exit code.

    The first signal stops the node in order; the second ends the process at once. An attempt that does not end in time
    is handed back, and the process exits, because nothing else can end a thread, or a hook that ignores its
    cancellation.
    """
    stop = asyncio.Event()
    worker.may_exit = True
    worker.monitor.notifier = notifier_of(os.environ)
    async with worker.monitor:
        return await _run(worker, stop)


async def _run(worker: Worker, stop: asyncio.Event) -> int:
    with _signals(worker, stop):
        drain, worker.drain = worker.drain, False
        async with contextlib.AsyncExitStack() as stack:
            node = await _start(worker, stack, stop)
            if node is None:
                return 0
            worker.on_start()
            worker.monitor.note_start()
            await _wait_for_end(node, stop, drain=drain)
            if stop.is_set() and node.runner.running:
                worker.logger.info(
                    "stops after its running tasks (%d); a second signal ends at once", len(node.runner.running)
                )
    if node.must_exit:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(node.cordon.exit_code)
    return 0 if stop.is_set() else node.cordon.exit_code


async def _start(worker: Worker, stack: contextlib.AsyncExitStack, stop: asyncio.Event) -> Node | None:
    """Start the node as soon as the store is available. Returns None if the worker is stopped before that. Errors that
    waiting does not fix are raised: a wrong password, a missing database or privilege, another schema version, a bad
    path."""
    failures, said = 0, ""
    while not stop.is_set():
        try:
            node = await stack.enter_async_context(worker)
        except StoreUnavailable as error:
            if not worker.may_wait:
                raise
            failures += 1
            worker.monitor.readiness.start_trouble = f"the worker cannot start yet: {error}"
            if str(error) != said:  # an outage is logged once, not at every attempt
                said = str(error)
                worker.logger.warning("cannot start yet: %s; tries again until it can", said)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_after(failures))
        else:
            if failures:
                worker.logger.info("the store is there after %d tries", failures + 1)
            return node
    worker.logger.info("was stopped before it could start")
    return None


async def _wait_for_end(node: Node, stop: asyncio.Event, *, drain: bool) -> None:
    waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(node.stopped())]
    if drain:
        waits.append(asyncio.ensure_future(node.drained()))
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in done:
            wait.result()  # a node that ended by an error has failed
    finally:
        for wait in waits:
            wait.cancel()


@contextlib.contextmanager
def _signals(worker: Worker, stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    asked: list[int] = []

    # Not the event loop's handlers: they run only when the loop does, and a task function may be blocking it.
    def on_signal(number: int, _frame: FrameType | None) -> None:
        if asked:
            os._exit(128 + number)
        asked.append(number)
        if worker.node is not None:
            worker.node.announce_stop()
        loop.call_soon_threadsafe(stop.set)

    with contextlib.ExitStack() as undo:
        for number in SIGNALS:
            with contextlib.suppress(ValueError):  # not the main thread
                undo.callback(signal.signal, number, signal.signal(number, on_signal) or signal.SIG_DFL)
        yield
