"""Tasks that only one at a time may run: how much passes between the end of one and the beginning of the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, Final

from benchmarks.figures import Measured
from synergon import Engine
from synergon.cli.bench import PATIENCE_SECONDS

BODY_SECONDS: Final = 0.02


class Turns:
    """A body that takes its time, and notes when."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._began: list[float] = []
        self.inside = self.most = self.done = 0
        self.are_over = asyncio.Event()

    async def body(self, number: int) -> int:
        self._began.append(perf_counter())
        self.inside += 1
        self.most = max(self.most, self.inside)
        # A timer of the loop may be late by as much as the store takes: the body is as long as it says.
        await asyncio.sleep(BODY_SECONDS)
        self.inside -= 1
        self.done += 1
        if self.done == self._tasks:
            self._ended = perf_counter()
            self.are_over.set()
        return number

    @property
    def milliseconds_each(self) -> float:
        """How long a task took, its wait for its turn included, once the first had begun."""
        return (self._ended - self._began[0]) / self._tasks * 1000


async def measure(subject: str, url: str, tasks: int, measured: Measured) -> None:
    """A limit by name, a line, and a server, one after the other."""
    for label, register in _WAYS.items():
        turns = Turns(tasks)
        engine = Engine(url)
        task = register(engine, turns.body)
        async with engine, asyncio.timeout(PATIENCE_SECONDS):
            handles = await task.enqueue_many((number,) for number in range(tasks))
            async with engine.worker():
                await turns.are_over.wait()
                await asyncio.gather(*(handle.result() for handle in handles))
        measured.add(f"{subject}.one_at_a_time_{label}", "ms", turns.milliseconds_each)
        measured.check(f"{subject}: {label}: one at a time", expected=1, found=turns.most)


Body = Callable[[int], Coroutine[Any, Any, int]]


def _by_name(engine: Engine, body: Body) -> Any:
    engine.limit("license", 1)
    return engine.task(name="licensed", limits=["license"])(body)


def _in_line(engine: Engine, body: Body) -> Any:
    return engine.task(name="in_line", limit_by=lambda number: "one", limit=1)(body)  # noqa: ARG005  found by its name


def _on_server(engine: Engine, body: Body) -> Any:
    return engine.provider("single", servers=["https://one.example.com"], capacity=1).task(name="on_server")(body)


_WAYS: Final = {"by_name": _by_name, "in_a_line": _in_line, "on_a_server": _on_server}
