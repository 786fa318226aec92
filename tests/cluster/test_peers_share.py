"""Three nodes that are alike, and a crowd of tasks: each runs once, and nobody takes all of them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.cluster.peers_support import cluster, url_fixture  # noqa: F401
from tests.cluster.support import IS_LONG_RUN
from tests.support import all_tasks, until

from synergon import Engine, State

CROWD: Final = 50_000 if IS_LONG_RUN else 1000
SECONDS: Final = 0 if IS_LONG_RUN else 0.3
"""Each stays for so long. In the short crowd it is the places that decide who runs how many; of tasks that stay for no
time at all, those would run most who get the processors, and the rest of the suite has a say in that."""


async def test_equal_nodes_share_many_tasks_and_run_each_once(url: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    settings = {"PEERS_MARKS": str(marks)} | ({} if IS_LONG_RUN else {"SYNERGON_CONCURRENCY": "16"})
    async with cluster(url, "mark", "mark", "mark", settings=settings) as producer:
        await producer.enqueue([producer.call("mark", number=-1) for _ in range(2000)])
        await until(lambda: have_ended(producer, 2000), patience_seconds=60)  # everybody has met everybody
        for path in marks.iterdir():
            path.write_text("")
        began = time.monotonic()
        for start in range(0, CROWD, 1000):
            calls = [producer.call("mark", number=number, seconds=SECONDS) for number in range(start, start + 1000)]
            await producer.enqueue(calls)
        await until(lambda: have_ended(producer, 2000 + CROWD), patience_seconds=300)
        took = time.monotonic() - began
        tasks = await all_tasks(producer)

    shares = {path.name: Counter(int(line) for line in path.read_text().split()) for path in marks.iterdir()}
    sizes = sorted(share.total() for share in shares.values())
    print(f"\n{url.split(':')[0]}: {CROWD} tasks in {took:.1f} s, shares {sizes}")
    assert sum(shares.values(), Counter[int]()) == Counter(range(CROWD))
    assert {(task.state, task.attempts, task.claim_no) for task in tasks} == {(State.SUCCEEDED, 1, 1)}
    assert len(sizes) == 3
    assert sizes[-1] <= 2 * sizes[0]


async def have_ended(producer: Engine, number: int) -> bool:
    """Whether so many have succeeded."""
    return (await producer.counts())[State.SUCCEEDED] == number
