"""An application with lifespans, whose functions run in child processes, too."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from synergon import Engine

engine = Engine("memory://")
shared: dict[str, int] = {}


@engine.lifespan
async def client() -> AsyncIterator[None]:
    shared["client"] = os.getpid()
    yield
    del shared["client"]


@engine.process_lifespan
def pool() -> Iterator[None]:
    shared["pool"] = shared.get("pool", 0) + 1
    yield
    log = Path(os.environ["LIFESPAN_LOG"])
    with log.open("a") as file:
        file.write(f"{os.getpid()}\n")


@engine.task
async def use_client() -> int:
    return shared["client"]


@engine.task(runs_in="process")
def use_pool() -> tuple[int, int]:
    return os.getpid(), shared["pool"]
