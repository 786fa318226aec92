"""`python -m benchmarks.postgres pgqueuer URL fill 0 1000`: a process of one system that does one thing.

It runs in the Python that the system is installed in, which may have nothing of ours: standard library only here.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from benchmarks.postgres.app import App, tell

CHUNK: Final = 1000
"""How many tasks a bulk enqueue holds."""

LEAD_SECONDS: Final = 2.0
"""Between the enqueue of scheduled tasks and the first that is due."""

GAP_SECONDS: Final = 0.01
"""Between two scheduled tasks."""


def main() -> None:
    """Do what the command line says: which system, where, what to do, and with which numbers."""
    system, url, what, *numbers = sys.argv[1:]
    make: Callable[[str], App] = importlib.import_module(f"benchmarks.postgres.{system}_app").APP
    _run(COMMANDS[what](make(url), *map(int, numbers)))


def _run(work: Coroutine[Any, Any, None]) -> None:
    """On uvloop, if it is installed: the same loop for every system."""
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        uvloop.run(work)
    else:
        asyncio.run(work)


async def _set_up(app: App) -> None:
    await app.set_up()


async def _fill(app: App, first: int, tasks: int) -> None:
    await app.connect()
    began = time.monotonic()
    for chunk in _chunks(range(first, first + tasks)):
        await app.fill(chunk)
    tell(seconds=time.monotonic() - began)
    await app.disconnect()


def _chunks(numbers: range) -> Iterator[range]:
    for first in range(0, len(numbers), CHUNK):
        yield numbers[first : first + CHUNK]


async def _produce(app: App) -> None:
    """One task for each number that comes in; the moment at which it was asked for goes out."""
    await app.connect()
    tell(ready=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = time.monotonic()
        await app.enqueue(int(line))
        tell(asked=asked)


async def _produce_resting(app: App) -> None:
    """The same on an event loop that rests between two calls, as in a script that does something else meanwhile."""
    await app.connect()
    await app.enqueue(-1)
    await asyncio.sleep(LEAD_SECONDS)  # connections are made, and nothing is under way
    tell(ready=True)
    while line := sys.stdin.readline():
        asked = time.monotonic()
        await app.enqueue(int(line))
        tell(asked=asked)


async def _schedule(app: App, first: int, tasks: int) -> None:
    await app.connect()
    began = time.time()
    due = [began + LEAD_SECONDS + GAP_SECONDS * number for number in range(tasks)]
    for number, moment in enumerate(due, first):
        await app.schedule(number, datetime.fromtimestamp(moment, UTC))
    tell(due=due)
    await app.disconnect()


async def _work(app: App) -> None:
    await app.work()


COMMANDS: Final[dict[str, Callable[..., Coroutine[Any, Any, None]]]] = {
    "set_up": _set_up,
    "fill": _fill,
    "produce": _produce,
    "produce_resting": _produce_resting,
    "schedule": _schedule,
    "work": _work,
}

if __name__ == "__main__":
    main()
