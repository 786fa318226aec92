"""Tenants that take turns: the drain of a kind with `fair_by` beside that without it, and the order of the starts."""

from __future__ import annotations

from collections import Counter
from time import perf_counter
from typing import Final

from benchmarks.figures import Measured
from synergon import Engine
from synergon.cli.bench import CHUNK, CONCURRENCY

TENANTS: Final = 50
ROUNDS: Final = 3
WEIGHTS: Final = {"heavy": 3.0, "light": 1.0}
STARTS: Final = 1000


class Tenants:
    """An engine with one kind, whose function notes the tenants in the order of their starts."""

    def __init__(self, url: str, *, is_fair: bool) -> None:
        self.engine = Engine(url, concurrency=CONCURRENCY)
        self.started: list[str] = []
        name = "fair" if is_fair else "unfair"
        self.task = (
            self.engine.task(name=name, fair_by="{tenant}", weight=WEIGHTS)(self._serve)
            if is_fair
            else self.engine.task(name=name)(self._serve)
        )

    async def _serve(self, tenant: str) -> None:
        self.started.append(tenant)

    async def put(self, *tenants: str, number: int) -> None:
        """Enqueue tasks of these tenants, one after the other."""
        for first in range(0, number, CHUNK):
            await self.task.enqueue_many(
                (tenants[place % len(tenants)],) for place in range(first, min(first + CHUNK, number))
            )

    async def drain(self, concurrency: int = CONCURRENCY) -> float:
        """Run everything. Returns the seconds from the start of the worker to its end."""
        began = perf_counter()
        async with self.engine.worker(concurrency=concurrency, drain=True):
            pass
        return perf_counter() - began


async def measure(subject: str, url: str, number: int, measured: Measured) -> None:
    """Tasks per second with and without turns, alternating; and the order of the starts."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    names = [f"tenant-{place}" for place in range(TENANTS)]
    for place in range(2 * ROUNDS):
        is_fair = place % 4 in (1, 2)
        tenants = Tenants(url, is_fair=is_fair)
        async with tenants.engine:
            await tenants.put(*names, number=number)
            seconds[is_fair].append(await tenants.drain())
    measured.add(f"{subject}.tenants_without_turns", "/s", number / min(seconds[False]))
    measured.add(f"{subject}.tenants", "/s", number / min(seconds[True]))
    measured.add(f"{subject}.tenants_to_without_turns", "×", min(seconds[False]) / min(seconds[True]))
    await _check_newcomer(subject, url, number, measured)
    await _check_weights(subject, url, measured)


async def _check_newcomer(subject: str, url: str, number: int, measured: Measured) -> None:
    tenants = Tenants(url, is_fair=True)
    async with tenants.engine:
        await tenants.put("first", number=number)
        await tenants.put("second", number=10)
        await tenants.drain(concurrency=1)
    last = len(tenants.started) - tenants.started[::-1].index("second")
    measured.check(f"{subject}: ten tasks are started before thirty of the other", expected=True, found=last <= 40)


async def _check_weights(subject: str, url: str, measured: Measured) -> None:
    tenants = Tenants(url, is_fair=True)
    async with tenants.engine:
        for name in WEIGHTS:
            await tenants.put(name, number=STARTS)
        await tenants.drain(concurrency=1)
    share = Counter(tenants.started[:STARTS])["heavy"] / STARTS
    measured.check(f"{subject}: the weights 3 and 1 are the shares", expected=True, found=abs(share - 0.75) <= 0.0375)
