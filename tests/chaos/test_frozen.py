"""A node that stands still past its lease and goes on: what it was doing is no longer its to finish."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from tests.chaos.arena import Arena
from tests.chaos.auditor import audit
from tests.chaos.databases import PostgresDatabase
from tests.cluster.support import until

LEASE: Final = 2.0


async def test_a_node_that_stood_still_past_its_lease_finishes_nothing_any_more(tmp_path: Path) -> None:
    async with Arena(tmp_path, PostgresDatabase(), lease=LEASE, concurrency=4) as arena:
        await arena.start_nodes(2)
        arena.start_producer(seed=3, a_second=20, longest=2.0)
        frozen = arena.nodes[0]
        await until("it works", lambda: arena.is_busy(frozen.pid))
        async with arena.frozen(0):
            await asyncio.sleep(LEASE * 2)
        await until("it is fenced", lambda: "has lost its lease" in frozen.log)
        await until(
            "it has joined again or has given way to another",
            lambda: "joined again as node" in frozen.log or arena.nodes[0] is not frozen,
        )
        await arena.drained()
        assert audit(arena.evidence()) == []
        assert set(arena.exits) <= {75}
        await arena.check_that_all_end_in_order()
