"""`kill -9` of one of three nodes under load, again and again: nothing is lost, nothing is finished twice."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final

import pytest
from tests.chaos.arena import Arena
from tests.chaos.auditor import audit, recoveries
from tests.chaos.databases import Database, PostgresDatabase, SqliteDatabase
from tests.cluster.support import IS_LONG_RUN, until
from tests.support import SOON, Pace

ROUNDS: Final = 20 if IS_LONG_RUN else 4
LEASE: Final = 3.0
PRODUCED_A_SECOND: Final = 20 if IS_LONG_RUN else 10
TO_START: Final = 4 * SOON
"""In how many paces a child process starts."""


async def kill_one_after_the_other(arena: Arena, database: Database) -> None:
    """Kill nodes that work; each is replaced before the next one falls."""
    await arena.start_nodes(3)
    arena.start_producer(seed=1, a_second=PRODUCED_A_SECOND, longest=1.0)
    for number in range(ROUNDS):
        victim = arena.nodes[number % 3]
        await until("it works", lambda pid=victim.pid: arena.is_busy(pid))  # type: ignore[misc]  # bound now
        if number % 2:  # as if on another host: only its lease tells that it is dead
            database.hide_process(victim.pid)
        victim.kill()
        # mypy knows no lambda with a default.
        await until("it is replaced", lambda place=number % 3, old=victim: arena.nodes[place] is not old)  # type: ignore[misc]
        await arena.joined(number % 3)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["postgres", "sqlite"])
async def test_work_of_a_node_that_is_killed_again_and_again_runs_again_within_the_lease_and_five_seconds(
    store: str, tmp_path: Path
) -> None:
    database: Database = PostgresDatabase() if store == "postgres" else SqliteDatabase(tmp_path)
    async with Arena(tmp_path, database, lease=LEASE, concurrency=4, schedules=3) as arena:
        with Pace() as pace:
            await kill_one_after_the_other(arena, database)
            await arena.drained()
        evidence = arena.evidence()
        assert audit(evidence) == []
        waits = recoveries(evidence)
        print(f"{len(waits)} executions ran again after {min(waits):.2f} to {max(waits):.2f} s")
        assert median(waits) < LEASE + 5 + pace.seconds(SOON)
        assert max(waits) < LEASE + 5 + pace.slowest_seconds(TO_START)
        assert arena.exits == {-9: ROUNDS}
        await arena.check_that_all_end_in_order()
