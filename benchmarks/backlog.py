"""A million tasks wait: what a claim costs then, whether the end is as fast as the beginning, and what memory a node
takes that works them off, alone in its process."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgspec

from benchmarks import isolation
from benchmarks.figures import Measured
from benchmarks.postgres.server import running_server
from benchmarks.sizes import Sizes
from benchmarks.synergon_bench import SYNCED, synchronous
from synergon import Engine, State
from synergon.cli.bench import CHUNK, CONCURRENCY, Percentiles
from synergon.model.claims import Claim, ClaimRequest, KindRequest
from synergon.model.nodes import NewNode
from synergon.model.outcomes import FencedOutcome, HandedBack
from synergon.model.process_identity import this_process

KIND: Final = "backlog"
CLAIM_SIZE: Final = 100
MOST_CLAIMS: Final = 500
LEASE_MICROSECONDS: Final = 60_000_000


class Drained(msgspec.Struct, frozen=True):
    """What the node saw while it worked the backlog off."""

    tenths_per_second: list[float]
    claim_ms: Percentiles
    succeeded: int
    synchronous: list[str]


def sqlite(folder: Path, sizes: Sizes) -> Measured:
    """On a new SQLite file."""
    return _measure("backlog", f"sqlite:///{folder}/backlog.db", sizes)


def postgres(folder: Path, sizes: Sizes) -> Measured:
    """On a new PostgreSQL server."""
    with running_server(folder) as url:
        return _measure("pg_backlog", url, sizes)


def _measure(subject: str, url: str, sizes: Sizes) -> Measured:
    """Fill, look, drain; each in a process of its own."""
    tasks = sizes.backlog
    measured = Measured()
    measured.add(f"{subject}.fill", "/s", isolation.in_new_process(_fill, url, tasks))
    for _ in range(sizes.repeats):
        claims = isolation.in_new_process(_claim_directly, url, min(MOST_CLAIMS, tasks // CLAIM_SIZE // 2))
        measured.add_percentiles(f"{subject}.claim_of_100", claims)
    drained, peak = isolation.with_peak_memory(_drain, url, tasks)
    first, last = drained.tenths_per_second[0], drained.tenths_per_second[-1]
    measured.add(f"{subject}.first_tenth", "/s", first)
    measured.add(f"{subject}.last_tenth", "/s", last)
    measured.add(f"{subject}.last_tenth_to_first", "×", last / first)
    measured.add_percentiles(f"{subject}.claim_while_draining", drained.claim_ms)
    measured.add(f"{subject}.node_memory", "MB", peak)
    measured.check(f"{subject}: every task is in the history, succeeded", expected=tasks, found=drained.succeeded)
    measured.check(f"{subject}: every commit is synced", expected=True, found=drained.synchronous in SYNCED)
    return measured


def _fill(url: str, tasks: int) -> float:
    async def fill() -> float:
        async with Engine(url) as engine:
            began = perf_counter()
            for first in range(0, tasks, CHUNK):
                last = min(first + CHUNK, tasks)
                await engine.enqueue(engine.call(KIND, number=number) for number in range(first, last))
            return tasks / (perf_counter() - began)

    return asyncio.run(fill())


def _claim_directly(url: str, claims: int) -> Percentiles:
    """How long the store takes to give out tasks while nobody else asks it for anything."""

    async def claim() -> Percentiles:
        async with Engine(url) as engine:
            store = engine._store
            await store.register(_node("bench"))
            request = ClaimRequest(node_id="bench", kinds=(KindRequest(kind=KIND, count=CLAIM_SIZE),), limit=CLAIM_SIZE)
            durations, taken = [], []
            for _ in range(claims):
                asked = perf_counter()
                taken.append(await store.claim(request))
                durations.append(perf_counter() - asked)
            for batch in taken:
                await store.finish([_given_back(claim) for claim in batch])
            await store.unregister("bench")
            return Percentiles.of(durations)

    return asyncio.run(claim())


def _node(node_id: str) -> NewNode:
    return NewNode(
        id=node_id,
        name=node_id,
        process=this_process(),
        kinds=(KIND,),
        queues=None,
        concurrency=CLAIM_SIZE,
        lease=LEASE_MICROSECONDS,
        version="",
    )


def _given_back(claim: Claim) -> FencedOutcome:
    return FencedOutcome(id=claim.id, claim_no=claim.claim_no, outcome=HandedBack())


def _drain(url: str, tasks: int) -> Drained:
    return asyncio.run(Drain(url, tasks).run())


class Drain:
    """A node that notes the moment at which each tenth of the tasks has begun, and how long its claims take."""

    def __init__(self, url: str, tasks: int) -> None:
        self._engine = Engine(url, concurrency=CONCURRENCY)
        self._engine.task(name=KIND)(self._body)
        self._tasks = tasks
        self._begun = 0
        self._moments: list[float] = []
        self._all_begun = asyncio.Event()
        self._claims: list[float] = []

    async def _body(self, number: int) -> int:
        if self._begun % (self._tasks // 10) == 0:
            self._moments.append(perf_counter())
        self._begun += 1
        if self._begun == self._tasks:
            self._moments.append(perf_counter())
            self._all_begun.set()
        return number

    async def run(self) -> Drained:
        async with self._engine:
            self._time_claims()
            async with self._engine.worker(drain=True):
                await self._all_begun.wait()
            counts = await self._engine.counts(kind=KIND)
            synced = await synchronous(self._engine)
        tenths = [self._tasks / 10 / (end - start) for start, end in pairwise(self._moments)]
        return Drained(tenths, Percentiles.of(self._claims), counts[State.SUCCEEDED], synced)

    def _time_claims(self) -> None:
        store: Any = self._engine._store
        claim = store.claim

        async def timed(request: ClaimRequest) -> list[Claim]:
            asked = perf_counter()
            claims: list[Claim] = await claim(request)
            self._claims.append(perf_counter() - asked)
            return claims

        store.claim = timed
