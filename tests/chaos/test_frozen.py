"""A node that stands still past its lease and goes on: what it was doing is no longer its to finish."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from tests.chaos import journal
from tests.chaos.arena import Arena
from tests.chaos.auditor import audit
from tests.chaos.databases import PostgresDatabase
from tests.chaos.evidence import Event
from tests.cluster.support import until

from synergon import Engine

LEASE: Final = 2.0


async def test_a_node_that_stood_still_past_its_lease_finishes_nothing_any_more(tmp_path: Path) -> None:
    async with Arena(tmp_path, PostgresDatabase(), lease=LEASE, concurrency=3) as arena:
        await arena.start_nodes(2)
        arena.start_producer(seed=3, a_second=10, longest=1.0)
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


async def test_a_node_that_stands_still_in_a_transaction_does_not_hold_up_who_takes_its_work(tmp_path: Path) -> None:
    database = PostgresDatabase()
    server = database.server
    server.administer("DROP TABLE IF EXISTS chaos_lock")
    server.administer("CREATE TABLE chaos_lock AS SELECT 0::bigint AS holder")
    async with Arena(tmp_path, database, lease=3) as arena, Engine(database.url) as producer:
        await arena.start_nodes(1)
        (handle,) = await producer.enqueue([producer.call("holding", on_node=arena.nodes[0].pid)])
        await until("it holds the row", lambda: any(line.event is Event.LIVES for line in journal.executions(tmp_path)))
        async with arena.frozen(0):
            assert server.administer("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'")
            await arena.start_nodes(1)
            await handle.result(timeout=30)
        await arena.drained()
        assert len({line.claim_no for line in journal.executions(tmp_path)}) >= 2
        assert set(arena.exits) <= {75}
