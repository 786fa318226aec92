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

LIMIT: Final = 2
LIMITED: Final = "limited"
FREE: Final = "free"


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
    pipes = [context.Pipe(duplex=False) for _ in range(sizes.customer_nodes)]
    nodes = [context.Process(target=_work, args=(url, barrier, mouth)) for _, mouth in pipes]
    for node in nodes:
        node.start()
    visits: list[Visit] = []
    for (ear, mouth), node in zip(pipes, nodes, strict=True):
        mouth.close()  # so that a node that dies is heard to
        if not ear.poll(PATIENCE_SECONDS):
            raise TimeoutError(f"a node has not ended after {PATIENCE_SECONDS:g} s")
        visits += ear.recv()
        node.join()
    return visits


async def _fill(url: str, kind: str, sizes: Sizes) -> None:
    shop = Shop(url)
    async with shop.engine:
        for first in range(0, sizes.customer_tasks, CHUNK):
            numbers = range(first, min(first + CHUNK, sizes.customer_tasks))
            await shop.kinds[kind].enqueue_many((number % sizes.customers,) for number in numbers)


def _work(url: str, barrier: Any, mouth: Connection) -> None:
    """A node process."""
    mouth.send(asyncio.run(_drain(url, barrier)))


async def _drain(url: str, barrier: Any) -> list[Visit]:
    shop = Shop(url)
    async with shop.engine:
        await asyncio.to_thread(barrier.wait, PATIENCE_SECONDS)
        async with shop.engine.worker(drain=True):
            pass
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
