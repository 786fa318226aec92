"""Nodes that all know the same kinds, and what they say of a task that waits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from tests.support import Gate, until, until_state

from synergon import (
    Candidate,
    Engine,
    Explanation,
    Handle,
    Health,
    Rate,
    Resources,
    Snooze,
    State,
)
from synergon.peering.pipe import PipeNetwork


class Crew:
    """Nodes that all know the same kinds. Bodies that hold stay until the gate opens."""

    def __init__(self, engines: list[Engine], stack: AsyncExitStack) -> None:
        self.engines = engines
        self.stack = stack
        self.gate = Gate()
        self.accepts = False
        self.troubles = 1
        """How often the body of `shaky` fails."""
        for engine in engines:
            self._register(engine)

    def _register(self, engine: Engine) -> None:
        gate = self.gate
        engine.limit("db", 1)
        engine.limit("http://gpu", None)
        pool = engine.provider("pool", servers={"http://gpu-1": 1}, health=Health(failures=1, backoff=3600, cap=3600))

        async def hold() -> None:
            await gate.hold()

        async def quick() -> None: ...

        async def deaf() -> None:
            holding = asyncio.ensure_future(gate.hold())
            while not holding.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(holding)

        async def shaky() -> None:
            self.troubles -= 1
            if self.troubles >= 0:
                raise ConnectionError("no route")

        async def snoozing() -> None:
            self.troubles -= 1
            if self.troubles >= 0:
                raise Snooze(3600)

        holding: dict[str, dict[str, Any]] = {
            "single": {"max_running": 1},
            "train": {"cost": Resources(gpu=1, ram="1GiB")},
            "stored": {"limits": ["db"]},
            "only": {"max_running_global": 1},
        }
        for kind, options in holding.items():
            engine.task(name=kind, **options)(hold)
        engine.task(hold)
        engine.task(quick)
        engine.task(preemptible=True)(deaf)
        engine.task(name="alarm", urgent=True)(quick)
        engine.task(name="siren", urgent=True)(quick)

        @engine.task(limit_by="{customer}", limit=1)
        async def bill(customer: str) -> None:
            await gate.hold()

        engine.task(name="asked")(quick)
        engine.task(name="paced", rate=Rate(1, per=3))(quick)
        engine.task(name="shaky", retry=3)(shaky)
        engine.task(name="snoozing")(snoozing)
        pool.task(name="serve")(hold)
        narrow = engine.provider("narrow", servers={"http://wide": None}, slots=1)
        narrow.task(name="pass_by")(hold)
        pool.task(name="break_it", retry=1)(shaky)

        @engine.kinds["asked"].can_accept(holds_for=0.5)
        def accept(candidates: list[Candidate]) -> list[Candidate]:
            return candidates if self.accepts else []

    @property
    def first(self) -> Engine:
        return self.engines[0]

    def call(self, kind: str, **options: Any) -> Any:
        return self.first.kinds[kind].with_options(**options)

    async def enqueue(self, kind: str, **options: Any) -> Handle[Any]:
        handle: Handle[Any] = await self.call(kind, **options).enqueue()
        return handle

    async def running(self, kind: str, number: int, **options: Any) -> list[Handle[Any]]:
        """So many of the kind, all of them running."""
        handles = [await self.enqueue(kind, **options) for _ in range(number)]
        for handle in handles:
            await until_state(handle, State.RUNNING)
        return handles

    async def said(self, handle: Handle[Any], pattern: str) -> Explanation:
        """What is said of the task, once it is this; nodes publish meanwhile."""
        found: list[Explanation] = []

        async def is_published() -> bool:
            for engine in self.engines:
                if engine._node is not None:
                    engine._node.membership.renew_soon()
            found[:] = [await self.first.explain(handle.id)]
            return re.fullmatch(pattern, found[0].sentence) is not None

        try:
            await until(is_published)
        except TimeoutError:
            raise AssertionError(f"not {pattern!r} but {found[0].sentence!r}\n{found[0]}") from None
        return found[0]

    def each(self, kind: str, clause: str) -> str:
        """The pattern of a sentence that says the same of every node."""
        count = len(self.engines)
        nodes = ", ".join(rf"node-{number} {clause}" for number in range(count))
        return rf"ready, due for \d+ s; {count} nodes? runs? `{kind}`: {nodes}"


@asynccontextmanager
async def crew_of(count: int, url: str, **settings: Any) -> AsyncIterator[Crew]:
    network = PipeNetwork(seed=3)
    usual: dict[str, Any] = {
        "sweep": 60,
        "concurrency": 2,
        "resources": Resources(cpu=4, ram="4GiB", gpu=1),
        "labels": {"zone:eu"},
    }
    engines = [
        Engine(url, name=f"node-{number}", transport=network.transport(), **(usual | settings))
        for number in range(count)
    ]
    async with AsyncExitStack() as stack:
        crew = Crew(engines, stack)
        for engine in engines:
            await stack.enter_async_context(engine.worker(grace=0))
        try:
            yield crew
        finally:
            crew.gate.open()
