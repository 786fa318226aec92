"""A node with nothing to do: how often it asks its store."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Measured
from benchmarks.postgres.server import running_server
from benchmarks.sizes import Sizes
from synergon import Engine
from synergon.stores import open_store

SETTLE_SECONDS: Final = 14.0
"""A node that has just started still looks often."""


class CountingStore:
    """A store that counts its calls. Leases are renewed on a path of their own, and not counted."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if inspect.iscoroutinefunction(found) and name != "keeper":
            self.calls += 1
        return found


def sqlite(folder: Path, sizes: Sizes) -> Measured:
    """How often an idle node asks a SQLite file."""
    return asyncio.run(_measure("sqlite", f"sqlite:///{folder}/idle.db", sizes.idle_seconds))


def postgres(folder: Path, sizes: Sizes) -> Measured:
    """How often an idle node asks a PostgreSQL server."""
    with running_server(folder) as url:
        return asyncio.run(_measure("pg_synergon", url, sizes.idle_seconds))


async def _measure(subject: str, url: str, seconds: float) -> Measured:
    measured = Measured()
    engine = Engine(url)
    stores: list[CountingStore] = []

    def counted(url: str) -> Any:
        stores.append(CountingStore(url))
        return stores[-1]

    engine._ports.make_store = counted  # the seam that tests use, too

    @engine.task
    async def nothing() -> None: ...

    async with engine, engine.worker():
        await asyncio.sleep(min(SETTLE_SECONDS, seconds))
        before = stores[-1].calls
        await asyncio.sleep(seconds)
        measured.add(f"{subject}.idle_node", "calls/s", (stores[-1].calls - before) / seconds)
    return measured
