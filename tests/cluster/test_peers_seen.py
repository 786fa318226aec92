"""Peers seen from outside: what goes through a node's door, and what the node asks its database meanwhile.

The nodes sweep once in an hour and each waits behind a proxy, so nothing but a message can explain that they act.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Final

import pytest
from tests import postgres_server
from tests.cluster.peer_proxy import Door
from tests.cluster.peers_support import cluster, joined, node, quantiles, url_fixture  # noqa: F401
from tests.cluster.support import IS_LONG_RUN
from tests.support import SOON, Pace, until

from synergon import Engine, State
from synergon.peering.outbox import MAX_RETRY_SECONDS, MIN_INTERVAL_SECONDS

PATIENCE: Final = 30.0
ROUNDS: Final = 200 if IS_LONG_RUN else 50
IDLE_SECONDS: Final = 30 if IS_LONG_RUN else 6
"""Longer than a beat of the node."""
ILL_SECONDS: Final = 60 if IS_LONG_RUN else 0.5
BURST: Final = 100_000 if IS_LONG_RUN else 10_000


# ------------------------------------------------------------ the right node


async def test_a_task_enqueued_anywhere_starts_at_once_on_the_only_node_of_its_kind(url: str) -> None:
    kinds = ("north", "east", "south")
    async with cluster(url, *kinds) as producer:
        homes: dict[str, int] = {}
        for kind in kinds:  # everybody meets everybody
            for other in kinds:
                (handle,) = await producer.enqueue([producer.call(kind, way=[other])])
                (pid, _), _ = await handle.result(timeout=PATIENCE)
                homes[kind] = pid
        assert len(set(homes.values())) == 3

        pauses = []
        with Pace() as pace:
            for way in product(kinds, repeat=3):  # from the producer to a node, and on from each node to each
                stored_at = time.time()
                (handle,) = await producer.enqueue([producer.call(way[0], way=list(way[1:]))])
                stages = await handle.result(timeout=PATIENCE)
                assert [pid for pid, _ in stages] == [homes[kind] for kind in way]
                moments = [stored_at, *(at for _, at in stages), time.time()]
                pauses += [later - earlier for earlier, later in pairwise(moments)]
    print(f"\n{url.split(':')[0]}: from stage to stage {median(pauses) * 1000:.1f} ms, at most {max(pauses):.3f} s")
    assert median(pauses) < pace.seconds(SOON)


# ------------------------------------------------------------ messages, and no polling


class Questions:
    """What one node asks its database; its lease apart."""

    def __init__(self, url: str, folder: Path) -> None:
        self.is_sqlite = url.startswith("sqlite")
        if not self.is_sqlite and not postgres_server.IS_OURS:
            pytest.skip("the statements are read from the server's log, and this server is not ours")
        self.url = url if self.is_sqlite else f"{url}&options=-c%20log_statement%3Dall"
        self._log = folder / "statements" if self.is_sqlite else postgres_server.folder() / "log"
        self.settings = {"PEERS_TRACE": str(self._log)} if self.is_sqlite else {}
        self._seen = 0

    def since_last_time(self) -> Counter[str]:
        """The statements; those that only open and close a transaction are part of others."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        new, self._seen = lines[self._seen :], len(lines)
        if not self.is_sqlite:
            new = [found[1] for line in new if (found := re.search(r"LOG:  (?:statement|execute \S+): (.*)", line))]
        asked = [line for line in new if not re.match(r"BEGIN|COMMIT|ROLLBACK|--", line)]
        return Counter(line for line in asked if not self._is_lease(line))

    @staticmethod
    def _is_lease(statement: str) -> bool:
        return "SET leased_until" in statement or "SELECT leased_until" in statement


async def test_a_node_acts_on_hints_and_rarely_queries_the_database_in_between(url: str, tmp_path: Path) -> None:
    questions = Questions(url, tmp_path)
    async with Door() as door, Engine(url, sweep=3600) as producer:
        with node(questions.url, "stamp", settings={**door.settings, **questions.settings}):
            await joined(producer, 1)
            (handle,) = await producer.enqueue([producer.call("stamp")])
            await handle.result(timeout=PATIENCE)  # the first one meets everybody
            await door.until_quiet()

            starts, results = [], []
            with Pace() as pace:
                for _ in range(ROUNDS):
                    let_in = door.let_in
                    (handle,) = await producer.enqueue([producer.call("stamp")])
                    stored_at = time.time()
                    started_at = await handle.result(timeout=PATIENCE)
                    results.append(time.time() - started_at)
                    starts.append(started_at - stored_at)
                    await door.until_let_in(let_in + 1)
                    assert door.let_in == let_in + 1, "one task, one message"
                    await asyncio.sleep(0.02)
            await _statistics_written(producer, ROUNDS + 1)
            questions.since_last_time()
            idle_since = time.monotonic()
            await asyncio.sleep(IDLE_SECONDS)
            asked = questions.since_last_time()
            idle_seconds = time.monotonic() - idle_since
    for what, seconds in {"from enqueue to start": starts, "from start to result here": results}.items():
        print(f"\n{url.split(':')[0]}: {what} p50 %.1f ms, p99 %.1f ms" % quantiles(seconds), end="")
    print(f"; {asked.total()} statements while idle for {idle_seconds:.1f} s: {asked}")
    assert median(starts) < pace.seconds(SOON)
    assert median(results) < pace.seconds(SOON)
    assert asked, "they are not counted"
    assert asked.total() <= 0.5 * idle_seconds + 2  # the beat may fall to either side of the ends


async def _statistics_written(producer: Engine, successes: int) -> None:
    """Wait until the node has written the statistics of this number of tasks: it does so once after it was busy."""

    async def are_written() -> bool:
        return sum(each.ended.get("succeeded", 0) for each in await producer.statistics()) >= successes

    await until(are_written)


async def test_when_all_messages_are_lost_the_sweep_starts_the_task(url: str) -> None:
    async with Door("silent") as door, cluster(url, "stamp", sweep="0.5", settings=door.settings) as producer:
        for _ in range(2):  # the first one may be found by the claim that a node begins with
            (handle,) = await producer.enqueue([producer.call("stamp")])
            await handle.result(timeout=PATIENCE)
        await until(lambda: door.turned_away > 0)
        assert door.let_in == 0


async def test_a_peer_that_answers_503_for_a_while_is_used_again(url: str) -> None:
    async with Door() as door, cluster(url, "stamp", settings=door.settings) as producer:
        (handle,) = await producer.enqueue([producer.call("stamp")])
        await handle.result(timeout=PATIENCE)
        await door.until_quiet()  # the node may have found it by itself, and hear of it later
        door.mood = "ill"
        (handle,) = await producer.enqueue([producer.call("stamp")])
        await asyncio.sleep(ILL_SECONDS)
        await until(lambda: door.turned_away > 2)
        assert (await handle.status()).state is State.READY

        door.mood = "open"
        await handle.result(timeout=MAX_RETRY_SECONDS + PATIENCE)
        await door.until_quiet()
        let_in = door.let_in
        with Pace() as pace:
            pauses = [await seconds_to_start(producer)]
            await door.until_let_in(let_in + 1)
            assert door.let_in == let_in + 1
            pauses += [await seconds_to_start(producer) for _ in range(2)]
    assert median(pauses) < pace.seconds(SOON), "no pause any more"


async def seconds_to_start(producer: Engine) -> float:
    """From the moment at which a task is stored."""
    (handle,) = await producer.enqueue([producer.call("stamp")])
    stored_at = time.time()
    started_at: float = await handle.result(timeout=PATIENCE)
    return started_at - stored_at


async def test_a_burst_makes_few_messages(url: str) -> None:
    async with Door() as door, cluster(url, "nothing", settings=door.settings) as producer:
        (handle,) = await producer.enqueue([producer.call("nothing")])
        await handle.result(timeout=PATIENCE)
        before, began = door.let_in, time.monotonic()

        async def enqueue_one_by_one() -> None:
            for _ in range(BURST // 2 // 100):
                await producer.enqueue([producer.call("nothing")])

        await asyncio.gather(*(enqueue_one_by_one() for _ in range(100)))
        for _ in range(BURST // 2 // 1000):
            await producer.enqueue([producer.call("nothing") for _ in range(1000)])
        took = time.monotonic() - began

        async def all_have_ended() -> bool:
            return (await producer.counts())[State.SUCCEEDED] == 1 + BURST

        await until(all_have_ended, patience_seconds=300)
        messages, rests = door.let_in - before, (time.monotonic() - began) / MIN_INTERVAL_SECONDS
        print(f"\n{url.split(':')[0]}: {BURST} tasks in {took:.1f} s, {messages} messages")
        assert messages < 500
        assert messages < rests + 10, "at most one for each time that the sender has rested"
