"""PostgreSQL is restarted, read-only or cut off under load: nodes wait, reconnect and finish; nothing is repeated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.chaos import journal
from tests.chaos.arena import Arena
from tests.chaos.auditor import audit
from tests.chaos.databases import PostgresDatabase, postgres_server
from tests.chaos.evidence import Event
from tests.chaos.faults import ON_POSTGRES, Deed
from tests.cluster.support import until


@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_nodes_wait_for_a_database_in_trouble_and_every_accepted_task_ends_once(
    name: str, tmp_path: Path
) -> None:
    async with Arena(tmp_path, PostgresDatabase(), lease=20, concurrency=8) as arena:
        await arena.start_nodes(2)
        arena.start_producer(seed=5, a_second=30, longest=1.0)
        await until("the work is under way", lambda: len(journal.accepted(tmp_path)) > 20)
        await ON_POSTGRES[name](arena, Deed(0, name, 0, 1.5))
        known = len(journal.accepted(tmp_path))
        await until("work comes in again", lambda: len(journal.accepted(tmp_path)) > known + 10)
        await arena.drained()
        assert audit(arena.evidence()) == []
        assert not arena.exits, "a node has ended"
        assert not arena.unexpected_words()
        await arena.check_that_all_end_in_order()


async def test_bodies_that_end_while_the_database_is_down_run_only_once(tmp_path: Path) -> None:
    database = PostgresDatabase()
    async with Arena(tmp_path, database, lease=20, concurrency=8) as arena:
        await arena.start_nodes(1)
        arena.start_producer(seed=6, kinds=["slow"], most=8, a_second=1000, longest=1.0)
        await until("all run", lambda: _number_of(tmp_path, Event.BEGINS) == 8)
        async with arena.outage():
            await asyncio.to_thread(postgres_server().stop, "immediate")
            await until("all have returned", lambda: _number_of(tmp_path, Event.RETURNS) == 8)
            await asyncio.to_thread(postgres_server().start)
        await arena.drained()
        assert audit(arena.evidence()) == []
        assert _number_of(tmp_path, Event.BEGINS) == 8
        assert {row.claim_no for row in database.rows()} == {1}


def _number_of(folder: Path, event: Event) -> int:
    return sum(line.event is event for line in journal.executions(folder))
