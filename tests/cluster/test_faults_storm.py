"""Everything at once, in an order that chance decides: deaths, restarts, standstills and a file that is locked."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter

import pytest
from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import IS_LONG_RUN, Cluster, WorkerProcess, cluster_fixture, until  # noqa: F401

from synergon import Call

STORM_SECONDS = 40
WAYS = [bodies.hold] * 6 + [bodies.hold_in_thread] * 3 + [bodies.hold_in_process]
EXPECTED_EXITS = {-signal.SIGKILL, 0, 75}


class Storm:
    """Hurts workers, and puts new ones in the place of those that fall."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.chance = chance
        self.deeds: Counter[str] = Counter()
        self.exits: Counter[int] = Counter()
        self._cluster = cluster
        self._workers = [self._launch() for _ in range(3)]

    async def strike(self) -> None:
        """Do something to one of them."""
        await self.replace_the_fallen()
        worker = self.chance.choice(self._workers)
        await until("it runs, or has fallen", lambda: not worker.is_running or "runs" in worker.log)
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        if not worker.is_running:
            return
        deed = self.chance.choice([self._kill, self._stop_in_order, self._freeze, self._lock])
        self.deeds[deed.__name__] += 1
        await deed(worker)

    async def replace_the_fallen(self) -> None:
        """A process that lost its lease under a stubborn body has ended by itself; it wants to be started again."""
        for position, worker in enumerate(self._workers):
            if not worker.is_running:
                self.exits[await worker.ends()] += 1
                self._workers[position] = self._launch()

    def _launch(self) -> WorkerProcess:
        return self._cluster.launch(concurrency=6, lease=2, grace=self.chance.choice([0, 0.1, 1]))

    async def _kill(self, worker: WorkerProcess) -> None:
        worker.kill()

    async def _stop_in_order(self, worker: WorkerProcess) -> None:
        worker.send(signal.SIGTERM)
        await worker.ends()

    async def _freeze(self, worker: WorkerProcess) -> None:
        await self._cluster.freeze(worker)
        await asyncio.sleep(self.chance.uniform(1.5, 3))
        worker.thaw()

    async def _lock(self, worker: WorkerProcess) -> None:
        async with self._cluster.file_locked():
            await asyncio.sleep(self.chance.uniform(0.5, 3))


def any_call(label: str, chance: random.Random) -> Call[str]:
    way = chance.choice(WAYS).with_options(delay=chance.choice([0, 0, chance.uniform(0, STORM_SECONDS / 2)]))
    return way.call(label, first=chance.uniform(0, 0.3), later=chance.uniform(0, 0.1))


@pytest.mark.skipif(not IS_LONG_RUN, reason="takes a minute; SYNERGON_LONG=1 runs it")
@pytest.mark.timeout(300)
async def test_a_storm_of_faults_loses_nothing_and_finishes_nothing_twice(cluster: Cluster) -> None:
    seed = int(os.environ.get("SYNERGON_TEST_SEED", random.randrange(1_000_000)))
    print(f"SYNERGON_TEST_SEED={seed}")
    chance = random.Random(seed)
    labels = [f"task-{number}" for number in range(1500)]
    handles = await cluster.enqueue(*(any_call(label, chance) for label in labels))
    storm = Storm(cluster, chance)
    ends_at = time.monotonic() + STORM_SECONDS
    while time.monotonic() < ends_at:
        await storm.strike()

    async def is_over() -> bool:
        await storm.replace_the_fallen()
        return await cluster.all_is_over()

    await until("every task has ended", is_over, patience=120)
    records = await cluster.check_that_each_ended_once(handles)
    assert sorted(records) == sorted(labels)
    assert set(storm.exits) <= EXPECTED_EXITS
    for worker in cluster.workers:
        assert "Traceback" not in worker.log
    print(dict(storm.deeds), dict(storm.exits), Counter(f"{record.state}" for record in records.values()))
