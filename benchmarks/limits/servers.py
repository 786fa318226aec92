"""Tasks over 64 servers; beside the same tasks without any, on the same store."""

from __future__ import annotations

from time import perf_counter, process_time
from typing import Any, Final

from benchmarks.figures import Measured
from synergon import Engine, Server, State
from synergon.cli.bench import CHUNK, CONCURRENCY

SERVERS: Final = 64
CAPACITY: Final = 8
"""So that all that the node runs at once have a server."""


async def measure(subject: str, url: str, tasks: int, measured: Measured) -> None:
    """Tasks per second and processor time for each, with and without servers, in turn."""
    engine = Engine(url, concurrency=CONCURRENCY)
    servers = [f"https://server{number}.example.com" for number in range(SERVERS)]
    pool = engine.provider("pool", servers=servers, capacity=CAPACITY)

    @pool.task
    async def on_server(server: Server, number: int) -> int:  # noqa: ARG001  it is what servers' tasks are given
        return number

    @engine.task
    async def anywhere(number: int) -> int:
        return number

    async with engine:
        rates = {}
        for kind in (anywhere, on_server):
            rates[kind.kind] = await _drained(engine, kind, tasks, f"{subject}.{_LABELS[kind.kind]}", measured)
        counts = await engine.counts(kind=on_server.kind)
        measured.check(f"{subject}: every task of a server succeeded", expected=tasks, found=counts[State.SUCCEEDED])
    measured.add(f"{subject}.servers_to_without_servers", "×", rates[on_server.kind] / rates[anywhere.kind])


_LABELS: Final = {"anywhere": "without_servers", "on_server": "servers"}


async def _drained(engine: Engine, kind: Any, tasks: int, name: str, measured: Measured) -> float:
    for first in range(0, tasks, CHUNK):
        await kind.enqueue_many((number,) for number in range(first, min(first + CHUNK, tasks)))
    began, cpu = perf_counter(), process_time()
    async with engine.worker(drain=True):
        pass
    rate = tasks / (perf_counter() - began)
    measured.add(name, "/s", rate)
    measured.add(f"{name}_cpu", "µs", (process_time() - cpu) / tasks * 1e6)
    return rate
