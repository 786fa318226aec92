"""A peer that is silent, busy or mad for a while: nobody waits for it, and it is used again when it is itself again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from tests.chaos.arena import Arena
from tests.chaos.auditor import audit
from tests.chaos.databases import PostgresDatabase
from tests.chaos.faulty_proxies import Manner
from tests.cluster.support import until

from synergon import Engine

RARELY: Final = 3600
"""Only a hint explains that a task starts."""


@pytest.mark.parametrize(
    "manner", [Manner.UNAVAILABLE, Manner.BLACK_HOLE, Manner.GARBAGE], ids=lambda manner: manner.name
)
async def test_a_peer_that_heals_is_used_again_without_a_restart(manner: Manner, tmp_path: Path) -> None:
    async with (
        Arena(tmp_path, PostgresDatabase(), lease=20, sweep=RARELY) as arena,
        Engine(arena.database.url, sweep=RARELY) as producer,
    ):
        await arena.start_nodes(1)
        (door,) = arena.doors
        before = (await producer.enqueue([producer.call("quick")]))[0]
        await before.result(timeout=30)
        await asyncio.sleep(1)  # its end makes the node look once more, which must be over

        door.become(manner)
        meanwhile = (await producer.enqueue([producer.call("quick")]))[0]
        await until("it was called in vain", lambda: door.calls > 0)
        assert (await meanwhile.status()).claim_no == 0, "it started, and nobody could have said so"
        door.become(Manner.OPEN)
        await meanwhile.result(timeout=30)
        after = (await producer.enqueue([producer.call("quick")]))[0]
        await after.result(timeout=30)

        await arena.drained()
        assert audit(arena.evidence()) == []
        assert arena.starts == 1


async def test_work_does_not_wait_for_a_peer_that_never_answers(tmp_path: Path) -> None:
    async with (
        Arena(tmp_path, PostgresDatabase(), lease=20, sweep=RARELY) as arena,
        Engine(arena.database.url) as producer,
    ):
        await arena.start_nodes(2)
        arena.doors[0].become(Manner.BLACK_HOLE)
        handles = await producer.enqueue(
            [producer.call("slow", seconds=0.5) for _ in range(24)]
        )  # more than one has room for
        async with asyncio.timeout(30):
            for handle in handles:
                await handle.result()
        assert audit(arena.evidence()) == []
