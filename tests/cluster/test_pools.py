"""One server with two places, and several processes that want them: never more than two at once, and none is lost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.cluster.apps.pool_bodies import obey, occupy
from tests.cluster.support import Cluster, until
from tests.cluster.test_faults_killed import hide_process_of
from tests.postgres_server import store_url
from tests.support import SOON, Pace

from synergon import Engine, Handle, Reason, State

LEASE_SECONDS = 2


class PoolCluster(Cluster):
    """Its workers have a pool of one server."""

    program = "pool_worker"

    def __init__(self, folder: Path, url: str | None = None) -> None:
        super().__init__(folder)
        self.is_file = url is None
        if url is not None:
            self.engine = Engine(url, sweep=0.05)

    def _may_be_written(self) -> bool:
        return not self.is_file or super()._may_be_written()

    def most_at_once(self) -> int:
        """How many bodies were between their begin and their end at the same time."""
        begun = [(entry.at, 1) for entry in self.journal.entries("begins")]
        over = [(entry.at, -1) for entry in self.journal.entries("ends")]
        now = most = 0
        for _, change in sorted([*begun, *over]):  # an end counts before a begin of the same moment
            now += change
            most = max(most, now)
        return most


@pytest.fixture(params=("sqlite", "postgres"))
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PoolCluster]:
    """Processes on either kind of store that they can share."""
    url = store_url() if request.param == "postgres" else None
    async with PoolCluster(tmp_path, url) as cluster:
        yield cluster


async def test_three_nodes_never_use_more_places_than_the_server_has(cluster: PoolCluster) -> None:
    for _ in range(3):
        cluster.launch(concurrency=1)  # whoever frees a place takes it again if it can: so no node can take both
    for worker in cluster.workers:
        await cluster.joined(worker)
    handles = await cluster.enqueue(*[occupy.call(str(number), first=0.005) for number in range(300)])
    records = await cluster.ends_of(handles)
    assert {record.state for record in records} == {State.SUCCEEDED}
    assert {record.result for record in records} == {0, 1}
    assert len({entry.pid for entry in cluster.journal.entries("begins")}) > 1, "one node did it all"
    assert cluster.most_at_once() == 2


async def test_the_places_of_a_killed_node_are_used_by_others_after_its_lease(cluster: PoolCluster) -> None:
    killed = await cluster.start(lease=LEASE_SECONDS)
    held = await cluster.enqueue(occupy.call("a", first=60), occupy.call("b", first=60))
    await cluster.journal.wait_for("begins", "a", "b")
    await cluster.start(lease=LEASE_SECONDS)
    waiting = await cluster.enqueue(occupy.call("c"))
    if cluster.is_file:
        hide_process_of(killed, cluster)  # or it would be seen dead at once
    with Pace() as pace:
        killed.kill()
        killed_at = time.time()
        (first,) = await cluster.journal.wait_for("begins", "c")
    assert first.at - killed_at < LEASE_SECONDS + 5 + pace.seconds(SOON)
    records = await cluster.ends_of([*held, *waiting])
    assert [(record.state, record.claim_no) for record in records] == [
        (State.SUCCEEDED, 2),
        (State.SUCCEEDED, 2),
        (State.SUCCEEDED, 1),
    ]
    (server,) = await cluster.engine.servers()
    assert server.in_use == 0


async def test_a_node_that_was_frozen_past_its_lease_frees_nothing_that_is_not_its_own(cluster: PoolCluster) -> None:
    frozen = await cluster.start(lease=LEASE_SECONDS)
    held = await cluster.enqueue(occupy.call("a", first=60, gated=True), occupy.call("b", first=60, gated=True))
    await cluster.journal.wait_for("begins", "a", "b")
    await cluster.freeze(frozen)
    await cluster.start(lease=LEASE_SECONDS)
    await cluster.journal.wait_for("begins", "a", "b", times=2)
    (waiting,) = await cluster.enqueue(occupy.call("c"))
    frozen.thaw()
    await frozen.says("joined again as node")
    await frozen.says("came too late and was rejected")

    (server,) = await cluster.engine.servers()
    assert server.in_use == 2
    assert (await waiting.status()).state is State.READY
    assert cluster.journal.entries("begins", "c") == []
    cluster.open_gate()
    records = await cluster.ends_of([*held, waiting])
    assert {record.state for record in records} == {State.SUCCEEDED}


async def test_a_command_whose_node_was_killed_has_failed_and_is_never_run_again(cluster: PoolCluster) -> None:
    killed = await cluster.start(lease=LEASE_SECONDS)
    task = msgspec.structs.replace(
        obey._task_type.call("command").to_new_task(), is_command=True, provider="pool", target="http://only"
    )
    (inserted,) = await cluster.engine._enqueuer.enqueue_tasks([task])
    handle = Handle.of(cluster.engine, inserted, obey._task_type)
    await cluster.journal.wait_for("begins", "command")
    await cluster.start(lease=LEASE_SECONDS)
    killed.kill()
    record = await cluster.end_of(handle)
    assert (record.state, record.reason) == (State.FAILED, Reason.CRASHED)
    (next_one,) = await cluster.enqueue(occupy.call("next"))
    assert (await cluster.end_of(next_one)).state is State.SUCCEEDED
    assert len(cluster.journal.entries("begins", "command")) == 1
    await until("the server is free", lambda: _is_free(cluster))


async def _is_free(cluster: PoolCluster) -> bool:
    (server,) = await cluster.engine.servers()
    return server.in_use == 0
