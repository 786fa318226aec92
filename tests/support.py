"""What the tests of the engine share: gates to hold bodies with, patience, and a store that can be made to fail."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from synergon import Engine, Handle, State, TaskRecord
from synergon.errors import StoreUnavailable
from synergon.stores import open_store
from synergon.stores.base import Store

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
        if not asyncio.iscoroutinefunction(real):
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
