"""500 customers, two tasks of each at a time, four node processes; beside the same tasks without a limit."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import defaultdict
from collections.abc import Iterable
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, Final, NamedTuple

from benchmarks.figures import Measured
from benchmarks.sizes import Sizes
from synergon import Engine, TaskType
from synergon.cli.bench import CHUNK, CONCURRENCY, PATIENCE_SECONDS
from synergon.model.lifecycle import LIVE

LIMIT: Final = 2
LIMITED: Final = "limited"
FREE: Final = "free"
LOOK_SECONDS: Final = 0.2


class Visit(NamedTuple):
    """A body that ran, by the clock that all processes of a host share."""

    customer: int
    began: float
    ended: float


class Shop:
    """An engine whose bodies do nothing but note when they ran."""

    def __init__(self, url: str) -> None:
        self.engine = Engine(url, concurrency=CONCURRENCY)
        self.visits: list[Visit] = []
        self.kinds: dict[str, TaskType[[int], [int], Any, None]] = {
            LIMITED: self.engine.task(name=LIMITED, limit_by="{customer}", limit=LIMIT)(self._serve),
            FREE: self.engine.task(name=FREE)(self._serve),
        }

    async def _serve(self, customer: int) -> None:
        began = monotonic()
        await asyncio.sleep(0)  # a body that never lets go could not overlap another one of its process
        self.visits.append(Visit(customer, began, monotonic()))


def measure(subject: str, url: str, sizes: Sizes, measured: Measured) -> None:
    """Tasks per second with and without the limit, in turn; and that it held."""
    plain = _rate(_run(url, FREE, sizes))
    visits = _run(url, LIMITED, sizes)
    limited = _rate(visits)
    measured.add(f"{subject}.customers_without_limit", "/s", plain)
    measured.add(f"{subject}.customers", "/s", limited)
    measured.add(f"{subject}.customers_to_without_limit", "×", limited / plain)
    by_customer = _by_customer(visits)
    last = [max(visit.ended for visit in visits) for visits in by_customer.values()]
    began = min(visit.began for visit in visits)
    measured.add(f"{subject}.customers_first_done_to_last", "×", (min(last) - began) / (max(last) - began))
    served = {len(visits) for visits in by_customer.values()}
    each = sizes.customer_tasks // sizes.customers
    measured.check(f"{subject}: every customer's tasks ran, each once", expected={each}, found=served)
    most = max(_most_at_once(visits) for visits in by_customer.values())
    measured.check(f"{subject}: never more than {LIMIT} of a customer at once", expected=True, found=most <= LIMIT)


def _run(url: str, kind: str, sizes: Sizes) -> list[Visit]:
    """Fill, then let the node processes begin together; what their bodies noted."""
    asyncio.run(_fill(url, kind, sizes))
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(sizes.customer_nodes)
    pipes = [context.Pipe() for _ in range(sizes.customer_nodes)]
    nodes = [context.Process(target=_work, args=(url, barrier, theirs)) for _, theirs in pipes]
    try:
        for node, (_, theirs) in zip(nodes, pipes, strict=True):
            node.start()
            theirs.close()  # so that a node that dies is heard to
        asyncio.run(_until_drained(url))
        for ours, _ in pipes:
            ours.send(None)
        return [visit for ours, _ in pipes for visit in ours.recv()]
    finally:
        for node in nodes:
            node.join(PATIENCE_SECONDS)


async def _fill(url: str, kind: str, sizes: Sizes) -> None:
    shop = Shop(url)
    async with shop.engine:
        for first in range(0, sizes.customer_tasks, CHUNK):
            numbers = range(first, min(first + CHUNK, sizes.customer_tasks))
            await shop.kinds[kind].enqueue_many((number % sizes.customers,) for number in numbers)


async def _until_drained(url: str) -> None:
    """Look from outside, and seldom: to count what is left takes time that the nodes want."""
    async with Engine(url) as engine, asyncio.timeout(PATIENCE_SECONDS):
        left = True
        while left:
            await asyncio.sleep(LOOK_SECONDS)
            counts = await engine.counts()
            left = any(counts[state] for state in LIVE)


def _work(url: str, barrier: Any, parent: Connection) -> None:
    """A node process, until it is told to end."""
    parent.send(asyncio.run(_serve_until_told(url, barrier, parent)))


async def _serve_until_told(url: str, barrier: Any, parent: Connection) -> list[Visit]:
    shop = Shop(url)
    async with shop.engine:
        await asyncio.to_thread(barrier.wait, PATIENCE_SECONDS)
        async with shop.engine.worker():
            await asyncio.to_thread(parent.recv)
    return shop.visits


def _rate(visits: list[Visit]) -> float:
    """From the first body of any node to the end of the last."""
    return len(visits) / (max(visit.ended for visit in visits) - min(visit.began for visit in visits))


def _by_customer(visits: Iterable[Visit]) -> dict[int, list[Visit]]:
    by_customer: dict[int, list[Visit]] = defaultdict(list)
    for visit in visits:
        by_customer[visit.customer].append(visit)
    return by_customer


def _most_at_once(visits: list[Visit]) -> int:
    moments = sorted([(visit.began, 1) for visit in visits] + [(visit.ended, -1) for visit in visits])
    inside = most = 0
    for _, step in moments:
        inside += step
        most = max(most, inside)
    return most
