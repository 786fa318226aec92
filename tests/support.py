"""What the tests of the engine share: gates to hold bodies with, patience, and a store that can be made to fail."""

from __future__ import annotations

import asyncio
import inspect
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, Final, cast

from synergon import Engine, Handle, NodeRecord, State, TaskRecord
from synergon.errors import StoreUnavailable
from synergon.model.nodes import NewNode
from synergon.model.process_identity import this_process
from synergon.node.node import Node
from synergon.stores import open_store
from synergon.stores.base import LeaseKeeper, Store

PATIENCE_SECONDS: Final = 30.0
"""How long a test waits for what should happen at once: the machine may be busy, and a failure is final anyway."""


NESTED: Final = "[" * 5000 + "]" * 5000
"""JSON that Python reads from 3.13 on, and that is too deeply nested for older ones."""
TOO_DEEPLY_NESTED: Final = "[" * 500_000 + "]" * 500_000
"""JSON that no Python can read. It is too long for an index of PostgreSQL."""


def pause_seconds(waited_seconds: float) -> float:
    """How long to wait for the next look at what cannot be awaited: what comes soon is seen soon, and looks at what
    takes long cost the machine little."""
    return min(0.02, max(0.002, waited_seconds / 20))


async def until(is_so: Callable[[], Awaitable[bool] | bool], patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Return as soon as it is so; for what only a look at the store can tell."""
    began = time.monotonic()
    async with asyncio.timeout(patience_seconds):
        while True:
            found = is_so()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(pause_seconds(time.monotonic() - began))


async def until_state(handle: Handle[Any], *states: State) -> TaskRecord:
    """The record, once the task is in one of these states."""
    found: list[TaskRecord] = []

    async def is_there() -> bool:
        found[:] = [await handle.status()]
        return found[0].state in states

    await until(is_there)
    return found[0]


async def ended(handle: Handle[Any]) -> TaskRecord:
    """The record of the task once it has ended, however that was."""
    return await handle_engine(handle).wait(handle.id, timeout=PATIENCE_SECONDS)


async def starts_of(handles: Sequence[Handle[Any]]) -> list[float]:
    """When the store let each of these tasks start, once they have ended. How much later a task function begins is up
    to the machine."""
    starts = [(await ended(handle)).started_at for handle in handles]
    return [start.timestamp() for start in starts if start is not None]


def handle_engine(handle: Handle[Any]) -> Engine:
    """The engine that the handle came from."""
    return handle._engine


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on, and that the system gives to no connection by itself: a client that
    calls again and again where nothing listens would be given that port some day, and would reach itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def a_row(node_id: str, *kinds: str, **otherwise: Any) -> NewNode:
    """A node that is nothing but its row: nobody works under that id."""
    usual = {"name": node_id, "process": this_process(), "queues": None, "concurrency": 1, "version": "0"}
    return NewNode(id=node_id, kinds=kinds, **{"lease": 60_000_000, **usual, **otherwise})


async def row_of(engine: Engine, node: Node) -> NodeRecord:
    """What the store has of the node."""
    return next(record for record in await engine.nodes() if record.id == node.id)


async def all_tasks(engine: Engine) -> list[TaskRecord]:
    """Every task that the store has."""
    found: list[TaskRecord] = []
    after: str | None = None
    while True:
        page = await engine.tasks(limit=1000, after=after)
        found += page
        after = page.next
        if after is None:
            return found


async def check_counts(engine: Engine) -> None:
    """What `counts()` says is what one gets by looking at every task."""
    recounted = Counter(task.state for task in await all_tasks(engine))
    assert {state: number for state, number in (await engine.counts()).items() if number} == recounted


class Gate:
    """Holds bodies until it is opened, and tells when one has come. For coroutines."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def hold(self) -> None:
        """Wait here; what a body awaits."""
        self.reached.set()
        await self._opened.wait()

    def open(self) -> None:
        """Let all go on."""
        self._opened.set()

    async def until_reached(self) -> None:
        """Return when a body waits here."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.reached.wait()


class ThreadGate:
    """The same for bodies in threads. It opens by itself in the end, so that no thread outlives a failed test."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def hold(self) -> None:
        """Wait here; what a body calls."""
        self._reached.set()
        self._opened.wait(PATIENCE_SECONDS)

    def open(self) -> None:
        """Let all go on."""
        self._opened.set()

    async def until_reached(self) -> None:
        """Return when a body waits here."""
        await until(self._reached.is_set)


class Pulse:
    """How long this process stood still while it should have run: a machine that is busy or asleep is late with
    everything, and that says nothing about the engine."""

    BEAT_SECONDS: Final = 0.01
    SLACK_SECONDS: Final = 0.02

    def __init__(self) -> None:
        self.missed_seconds = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def _beat(self) -> None:
        before = time.monotonic()
        while not self._is_over.wait(self.BEAT_SECONDS):
            now = time.monotonic()
            late = now - before - self.BEAT_SECONDS
            self.missed_seconds += late if late > self.SLACK_SECONDS else 0
            before = now

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


class Pace:
    """How fast this machine is at the moment: how long another process takes to wake, to work a little and to answer.

    It is taken again and again while the context lasts. A bar of a number of paces holds on a busy machine as it does
    on an idle one, where a pace takes a few milliseconds.
    """

    REST_SECONDS: Final = 0.1
    PROGRAM: Final = "import sys\nfor line in sys.stdin: print(sum(range(500_000)), flush=True)"

    def __init__(self) -> None:
        self._taken: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._take, daemon=True)

    def _take(self) -> None:
        command = [sys.executable, "-S", "-c", self.PROGRAM]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            question, answer = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
            is_started = False
            while not self._is_over.wait(self.REST_SECONDS) or not self._taken:
                began = time.monotonic()
                print("go", file=question, flush=True)
                answer.readline()
                if is_started:  # the first answer waits for the interpreter to start
                    self._taken.append(time.monotonic() - began)
                is_started = True

    def seconds(self, paces: int) -> float:
        """What that many paces take as a rule. Ask when the context is over."""
        return paces * statistics.median(self._taken)

    def slowest_seconds(self, paces: int) -> float:
        """What that many paces take at the rate of the slowest one."""
        return paces * max(self._taken)

    def __enter__(self) -> Pace:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


SOON: Final = 50
"""In how many paces a thing happens that happens at once: a few tenths of a second on an idle machine."""


Trouble = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""What happens instead of a call to the store; it is given the call, and may make it."""


class TroubledStore:
    """The real store behind a door that a test can close: `cause("claim", trouble)` until `end("claim")`."""

    def __init__(self, store: Store) -> None:
        self._real = store
        self._troubles: dict[str, Trouble] = {}
        self.calls: Counter[str] = Counter()

    def cause(self, call: str, trouble: Trouble) -> None:
        """From now on let `trouble` happen instead of that call."""
        self._troubles[call] = trouble

    def end(self, call: str) -> None:
        """From now on let the call through."""
        self._troubles.pop(call, None)

    @contextmanager
    def away(self, *calls: str) -> Iterator[None]:
        """An outage: these calls find no database."""
        for call in calls:
            self.cause(call, is_away)
        yield
        for call in calls:
            self.end(call)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if not inspect.iscoroutinefunction(real):
            return real

        async def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            trouble = self._troubles.get(name)
            if trouble is None:
                return await real(*arguments, **named)
            return await trouble(lambda: real(*arguments, **named))

        return call


async def is_away(_call: Callable[[], Awaitable[Any]]) -> Any:
    """Trouble: the database is not there."""
    raise StoreUnavailable("the database is away")


def make_troubled(engine: Engine) -> list[TroubledStore]:
    """Put a door before the engine's store; the one in use is the last of the list, once the engine is connected."""
    made: list[TroubledStore] = []

    def make(url: str) -> Store:
        made.append(TroubledStore(open_store(url)))
        return cast("Store", made[-1])

    engine._ports.make_store = make
    return made


class Renewals:
    """The way from an engine to its leases, which a test can cut: how often they were renewed on it. Another thread
    goes on counting while the loop is blocked."""

    def __init__(self, engine: Engine) -> None:
        self.count = 0
        self.is_cut = False
        """How often a node could not say that it stops."""
        real_make = engine._ports.make_store

        def make(url: str) -> Store:
            store = real_make(url)
            real_keeper = store.keeper

            async def keeper() -> LeaseKeeper:
                return cast("LeaseKeeper", WatchedKeeper(await real_keeper(), self))

            store.keeper = keeper  # type: ignore[method-assign]  # put in its place
            return store

        engine._ports.make_store = make


class WatchedKeeper:
    """A lease keeper that is counted, and does not get through while the way is cut."""

    def __init__(self, real: LeaseKeeper, way: Renewals) -> None:
        self._real = real
        self._way = way

    async def renew(self, node_id: str, lease: int, published: bytes | None = None) -> bool:
        """Renew, if the way is open."""
        if self._way.is_cut:
            raise StoreUnavailable("the way is cut")
        is_known = await self._real.renew(node_id, lease, published)
        self._way.count += 1
        return is_known

    async def close(self) -> None:
        """Close the real one."""
        await self._real.close()
