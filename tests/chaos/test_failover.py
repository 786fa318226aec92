"""The primary is lost under load and its standby takes its place; `make failover` does it again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.app import MENDED
from tests.chaos.auditor import audit
from tests.chaos.databases import PostgresDatabase
from tests.chaos.failover import FORMS, failover
from tests.chaos.replication import Loss, ReplicatedServer
from tests.cluster.support import IS_LONG_RUN
from tests.pgbouncer_server import find_program

from synergon import Engine, State, StoreUnavailable


@pytest.fixture(scope="module")
def both() -> Iterator[ReplicatedServer]:
    """The servers of all tests here."""
    made = ReplicatedServer()
    yield made
    made.close()


@pytest.fixture
def server(both: ReplicatedServer) -> ReplicatedServer:
    """A primary with a synchronous standby."""
    both.restore_standby()
    return both


async def test_what_is_not_on_the_standby_is_not_accepted_unless_the_producer_does_without_it(
    server: ReplicatedServer,
) -> None:
    database = PostgresDatabase(server)
    url = f"{database.url}&timeout=1"
    async with Engine(url) as careful, Engine(f"{url}&options=-c%20synchronous_commit%3Dlocal") as careless:
        (kept,) = await careful.enqueue([careful.call("quick")])
        with server.sending_nothing():
            with pytest.raises(StoreUnavailable):
                await careful.enqueue([careful.call("quick")])
            await careless.enqueue([careless.call("quick")])
            assert server.ask_standby(f"SELECT id FROM {database.schema}.task") == [(kept.id,)]


@pytest.mark.parametrize("loss", Loss if IS_LONG_RUN else [Loss.STOP], ids=lambda loss: loss.name.lower())
async def test_no_accepted_task_is_lost_with_the_primary_and_none_runs_twice(
    loss: Loss, server: ReplicatedServer, tmp_path: Path
) -> None:
    forms = FORMS if find_program() is not None else ["direct"]
    async with failover(server, tmp_path, forms, places=2) as pair:
        for number in range(len(forms)):
            pair.arena.start_producer(seed=number, a_second=20, longest=0.5)
        await pair.lose_primary(loss)
        await pair.arena.drained()
        evidence = pair.arena.evidence()
        assert audit(evidence) == []
        batches = {row.batch_id or row.id for row in evidence.rows if row.kind == "batched"}
        rows = [row for row in evidence.rows if row.kind != "batched" and not row.is_map]  # a map runs no function
        charged = Counter({row.id: row.attempts for row in rows})
        mended = [row for row in rows if row.kind == "mended" and row.state is State.SUCCEEDED]
        before = Counter({row.id: MENDED.attempts for row in mended})  # their retry has reset their attempts
        executions = {(line.task_id, line.claim_no) for line in evidence.lines}
        started = Counter(task_id for task_id, _ in executions)
        expected = charged + before + Counter(batches)
        assert started == expected, "a task was started again, and nothing had failed"
        assert not pair.arena.exits, "a node has ended"
        assert not pair.arena.unexpected_words()
        await pair.arena.check_that_all_end_in_order()
