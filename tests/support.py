"""What the tests of the engine share: gates to hold bodies with, patience, and a store that can be made to fail."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from synergon import Engine, Handle, NodeRecord, State, TaskRecord
from synergon.errors import StoreUnavailable
from synergon.node.node import Node
from synergon.node_records import NewNode
from synergon.stores import open_store
from synergon.stores.base import LeaseKeeper, Store
from synergon.this_process import this_process

PATIENCE_SECONDS: Final = 30.0
"""How long a test waits for what should happen at once: the machine may be busy, and a failure is final anyway."""


async def until(is_so: Callable[[], Awaitable[bool] | bool], patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Return as soon as it is so; for what only a look at the store can tell."""
    async with asyncio.timeout(patience_seconds):
        while True:
            found = is_so()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.002)


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


def handle_engine(handle: Handle[Any]) -> Engine:
    """The engine that the handle came from."""
    return handle._engine


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
    before: int | None = None
    while True:
        page = await engine.tasks(limit=1000, before=before)
        found += page
        before = page.next
        if before is None:
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

    engine._make_store = make
    return made


class Renewals:
    """The way from an engine to its leases, which a test can cut: how often they were renewed on it. Another thread
    goes on counting while the loop is blocked."""

    def __init__(self, engine: Engine) -> None:
        self.count = 0
        self.is_cut = False
        self.stops_refused = 0
        """How often a node could not say that it stops."""
        real_make = engine._make_store

        def make(url: str) -> Store:
            store = real_make(url)
            real_keeper = store.keeper

            async def keeper() -> LeaseKeeper:
                return cast("LeaseKeeper", WatchedKeeper(await real_keeper(), self))

            store.keeper = keeper  # type: ignore[method-assign]  # put in its place
            return store

        engine._make_store = make


class WatchedKeeper:
    """A lease keeper that is counted, and does not get through while the way is cut."""

    def __init__(self, real: LeaseKeeper, way: Renewals) -> None:
        self._real = real
        self._way = way

    async def renew(
        self, node_id: str, lease: int, published: bytes | None = None, *, is_stopping: bool = False
    ) -> bool:
        """Renew, if the way is open."""
        if self._way.is_cut:
            self._way.stops_refused += is_stopping
            raise StoreUnavailable("the way is cut")
        is_known = await self._real.renew(node_id, lease, published, is_stopping=is_stopping)
        self._way.count += 1
        return is_known

    async def close(self) -> None:
        """Close the real one."""
        await self._real.close()
